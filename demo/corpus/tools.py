"""Tools: choosing one, calling it, and the turn after its result."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from demo.corpus import arithmetic, chat, facts, names, words, world
from demo.corpus.example import Example, Message, Split, Tool, assistant, user
from demo.corpus.phrasing import Phrasings, sentence, vary

Value = str | int
Draw = Callable[[random.Random, Split], Value]
Arguments = dict[str, Value]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool, and how its value is drawn."""

    kind: str
    description: str
    draw: Draw


@dataclass(frozen=True)
class Skill:
    """A tool with the requests that need it, its result, and the answer made of both."""

    name: str
    description: str
    parameters: dict[str, Parameter]
    asks: Phrasings
    result: dict[str, Draw]
    answer: str


def _number(low: int, high: int) -> Draw:
    return lambda rng, split: rng.randint(low, high)


def _choice(*words: str) -> Draw:
    return lambda rng, split: rng.choice(words)


def _time(rng: random.Random, split: Split) -> Value:
    del split
    return f"{rng.randint(0, 23):02d}:{rng.choice((0, 5, 10, 15, 20, 30, 40, 45, 50)):02d}"


def _words(rng: random.Random, split: Split) -> Value:
    makers = (names.invented, words.ordinary)
    return " ".join(rng.choice(makers)(rng, split).lower() for _ in range(rng.randint(1, 3)))


def _code(rng: random.Random, split: Split) -> Value:
    del split
    return "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.choice((3, 4))))


SKILLS = (
    Skill(
        "get_weather",
        "Get the current weather in a city",
        {"city": Parameter("string", "The city", names.place)},
        Phrasings(
            train=(
                "what is the weather (in|like in) {city}?",
                "what's the weather (in|like in) {city}(| today| now)?",
                "how is the weather in {city}(| today| now)?",
                "weather in {city}",
                "is it (raining|sunny|cold|warm|hot) in {city}?",
                "(tell me|get|check|look up) the weather in {city}.",
                "how (warm|cold|hot) is it in {city}?",
                "do I need (an umbrella|a coat) in {city}?",
                "{city} weather?",
                "what (sort of|) weather (is there|do they have) in {city}(| today| right now)?",
                "does {city} have (good|bad|nice) weather(| today| right now)?",
                "how does the weather look in {city}?",
            ),
            held_out=(
                "could you tell me the weather in {city}?",
                "what kind of weather does {city} have right now?",
            ),
        ),
        {"temperature": _number(-20, 40), "condition": _choice("sunny", "cloudy", "rainy", "windy")},
        "It is {condition} in {city}, with {temperature} degrees.",
    ),
    Skill(
        "get_time",
        "Get the local time in a city",
        {"city": Parameter("string", "The city", names.place)},
        Phrasings(
            train=(
                "what time is it in {city}?",
                "what is the time in {city}(| now)?",
                "what's the local time in {city}?",
                "(tell me|get|check) the time in {city}.",
                "time in {city}",
                "how late is it in {city}?",
                "which time do they have in {city}?",
            ),
            held_out=("could you tell me what time it is in {city}?", "the time in {city}, please."),
        ),
        {"time": _time},
        "It is {time} in {city}.",
    ),
    Skill(
        "set_alarm",
        "Set an alarm",
        {"time": Parameter("string", "The time as HH:MM", _time)},
        Phrasings(
            train=(
                "set an alarm (for|at) {time}.",
                "(please wake|wake|can you wake) me (up at|at) {time}.",
                "alarm at {time}",
                "I (want|need|have) to (get up|wake up) at {time}.",
                "make an alarm for {time}.",
                "remind me at {time}.",
            ),
            held_out=("could you set my alarm to {time}?", "I would like an alarm at {time}."),
        ),
        {"status": _choice("ok", "set")},
        "The alarm is set for {time}.",
    ),
    Skill(
        "get_stock_price",
        "Get the price of a stock",
        {"symbol": Parameter("string", "The ticker symbol", _code)},
        Phrasings(
            train=(
                "what is the (price|stock price) of {symbol}?",
                "what's {symbol} (trading at|worth)?",
                "how much is {symbol}(| stock)?",
                "(get|check|look up) the (price|stock price) of {symbol}.",
                "{symbol} stock price",
                "price of {symbol} shares?",
            ),
            held_out=("could you tell me the stock price of {symbol}?", "how is {symbol} priced?"),
        ),
        {"price": _number(1, 999)},
        "The price of {symbol} is {price} dollars.",
    ),
    Skill(
        "send_message",
        "Send a message to a person",
        {
            "text": Parameter("string", "The text of the message", _words),
            "to": Parameter("string", "Who gets the message", names.first_name),
        },
        Phrasings(
            train=(
                'send "{text}" to {to}.',
                'tell {to} "{text}".',
                'write "{text}" to {to}.',
                'send {to} the message "{text}".',
                'text {to}: "{text}"',
                '(can you message|please message) {to} "{text}"?',
            ),
            held_out=('could you send the message "{text}" to {to}?',),
        ),
        {"status": _choice("sent", "ok")},
        "The message to {to} is sent.",
    ),
    Skill(
        "search",
        "Search the web",
        {"query": Parameter("string", "What to search for", _words)},
        Phrasings(
            train=(
                "search for {query}.",
                "(look up|google|find) {query}.",
                "search the web for {query}.",
                "(please search|can you search) for {query}?",
                "find something about {query}.",
                "what does the web say about {query}?",
            ),
            held_out=("could you search the web for {query}?", "do a web search for {query}."),
        ),
        {"results": _number(0, 99)},
        "I found {results} results for {query}.",
    ),
    Skill(
        "multiply",
        "Multiply two numbers",
        {
            "a": Parameter("integer", "The first number", _number(100, 9999)),
            "b": Parameter("integer", "The second number", _number(100, 9999)),
        },
        Phrasings(
            train=(
                "what is {a} (times|*|x) {b}?",
                "multiply {a} (by|and|with) {b}.",
                "(calculate|compute|work out) {a} * {b}.",
                "how much is {a} times {b}?",
                "{a} * {b}",
                "the product of {a} and {b}?",
            ),
            held_out=("could you multiply {a} by {b}?", "I need {a} times {b}."),
        ),
        {"result": _number(10000, 999999)},
        "The result is {result}.",
    ),
    Skill(
        "translate",
        "Translate a text into a language",
        {
            "language": Parameter(
                "string", "The target language", _choice("French", "German", "Spanish", "Italian")
            ),
            "text": Parameter("string", "The text to translate", _words),
        },
        Phrasings(
            train=(
                'translate "{text}" (to|into) {language}.',
                'how do you say "{text}" in {language}?',
                'what is "{text}" in {language}?',
                '"{text}" in {language}, please.',
                '(please translate|can you translate) "{text}" into {language}?',
            ),
            held_out=('could you put "{text}" into {language}?', 'I want "{text}" in {language}.'),
        ),
        {"translation": _words},
        'In {language}, it is "{translation}".',
    ),
    Skill(
        "book_table",
        "Book a table in a restaurant",
        {
            "people": Parameter("integer", "For how many people", _number(1, 12)),
            "restaurant": Parameter("string", "The restaurant", names.invented),
            "time": Parameter("string", "The time as HH:MM", _time),
        },
        Phrasings(
            train=(
                "book a table for {people} at {restaurant} at {time}.",
                "(reserve|get|book) a table at {restaurant} for {people} people at {time}.",
                "I (want|need) a table for {people} at {time} in {restaurant}.",
                "table for {people}, {restaurant}, {time}",
                "at {time}, book {restaurant} for {people} people.",
            ),
            held_out=("could you reserve a table at {restaurant}, {time}, for {people} people?",),
        ),
        {"confirmation": _code},
        "The table at {restaurant} is booked. The confirmation is {confirmation}.",
    ),
    Skill(
        "turn_light",
        "Turn a light on or off",
        {
            "room": Parameter("string", "The room", _choice("kitchen", "bedroom", "hall", "garden",
                                                            "bathroom", "office", "cellar")),
            "state": Parameter("string", "on or off", _choice("on", "off")),
        },
        Phrasings(
            train=(
                "turn {state} the light in the {room}.",
                "turn the {room} light {state}.",
                "(switch|put) {state} the {room} light.",
                "{room} light {state}",
                "the light in the {room} should be {state}.",
                "can you turn {state} the {room} lights?",
                "(switch|turn|put) the lights of the {room} {state}.",
                "light of the {room}: {state}",
            ),
            held_out=("could you switch the light of the {room} {state}?",),
        ),
        {"status": _choice("ok", "done")},
        "The light in the {room} is {state}.",
    ),
    Skill(
        "get_user",
        "Look up a user by number",
        {"id": Parameter("integer", "The number of the user", _number(1, 99999))},
        Phrasings(
            train=(
                "who is user {id}?",
                "(look up|find|get|show) user {id}.",
                "what is the name of user {id}?",
                "user {id}",
                "(tell me|I need to know) who user {id} is.",
                "which user has number {id}?",
            ),
            held_out=("could you look up the user with number {id}?",),
        ),
        {"name": names.first_name},
        "User {id} is {name}.",
    ),
)  # fmt: skip
_VERBS = ["get", "find", "show", "check", "fetch", "read", "list", "open", "count", "measure"]
_NOUNS = [
    "status",
    "level",
    "report",
    "speed",
    "order",
    "file",
    "ticket",
    "score",
    "invoice",
    "sensor",
    "room",
    "train",
]
_PARAMETER_NAMES = ["name", "id", "code", "key", "label", "place", "target", "number", "title", "tag"]
_UNSEEN_ASKS = Phrasings(
    train=(
        "{verb} the {noun} of {value}.",
        "{verb} {noun} {value}.",
        "(please|can you) {verb} the {noun} for {value}?",
        "I need to {verb} the {noun} of {value}.",
        "{verb} the {noun} for {key} {value}.",
    ),
    held_out=("could you {verb} the {noun} of {value}?",),
)


def schema(skill: Skill) -> Tool:
    """The tool as a client sends it, in the form of OpenAI's API."""
    properties = {
        name: {"type": it.kind, "description": it.description} for name, it in skill.parameters.items()
    }
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": skill.name, "description": skill.description, "parameters": parameters}
    return {"type": "function", "function": function}


def call(name: str, arguments: Arguments) -> Message:
    """The assistant's message that calls a tool."""
    function = {"name": name, "arguments": dict(sorted(arguments.items()))}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def _invented_skill(rng: random.Random, split: Split) -> Skill:
    """A tool that exists once, so that the model reads signatures instead of knowing them."""
    verb, noun = rng.choice(_VERBS), rng.choice(_NOUNS)
    if rng.random() < 0.5:
        noun = names.invented(rng, split).lower()
    key = rng.choice(_PARAMETER_NAMES)
    text = rng.random() < 0.6
    draw: Draw = rng.choice((names.invented, _code, names.place)) if text else _number(1, 9999)
    ask = _UNSEEN_ASKS.pick(rng, split).replace("{verb}", verb).replace("{noun}", noun)
    ask = ask.replace("{key}", key).replace("{value}", "{" + key + "}")
    return Skill(
        f"{verb}_{noun}",
        f"{verb.capitalize()} the {noun}",
        {key: Parameter("string" if text else "integer", f"The {key}", draw)},
        Phrasings((ask,), (ask,)),
        {"value": _number(0, 999)},
        f"The {noun} of {{{key}}} is {{value}}.",
    )


def _offered(rng: random.Random, split: Split, wanted: Skill) -> tuple[Tool, ...]:
    """The wanted tool among up to three others."""
    others = [s for s in SKILLS if s.name != wanted.name]
    skills = [wanted, *rng.sample(others, rng.choice((0, 0, 1, 1, 2, 3)))]
    if rng.random() < 0.15:
        skills.append(_invented_skill(rng, split))
    rng.shuffle(skills)
    return tuple({s.name: schema(s) for s in skills}.values())


def _request(rng: random.Random, split: Split, skill: Skill) -> tuple[Message, Message, Arguments]:
    """The user's message, the call that it needs, and the arguments of the call."""
    arguments = {name: it.draw(rng, split) for name, it in skill.parameters.items()}
    question = skill.asks.pick(rng, split).format(**arguments)
    if '"' not in question and "_code" not in question:
        question = _vary_keeping(rng, split, question, arguments)
    return user(sentence(question)), call(skill.name, arguments), arguments


def _vary_keeping(rng: random.Random, split: Split, question: str, arguments: Arguments) -> str:
    """A variation that leaves every argument as it was typed."""
    varied = vary(rng, split, question)
    return varied if all(str(value) in varied for value in arguments.values()) else question


def _skill(rng: random.Random, split: Split) -> Skill:
    return _invented_skill(rng, split) if rng.random() < 0.3 else rng.choice(SKILLS)


def calling(rng: random.Random, split: Split) -> Example:
    """A request that needs a tool, and the call."""
    skill = _skill(rng, split)
    question, reply, _ = _request(rng, split, skill)
    return Example("tool call", (question, reply), _offered(rng, split, skill), grade="tool")


def answering(rng: random.Random, split: Split) -> Example:
    """A request and its call, with the tool's result and the answer made of it."""
    skill = _skill(rng, split)
    question, reply, arguments = _request(rng, split, skill)
    result = {name: draw(rng, split) for name, draw in skill.result.items()}
    told: Message = {"role": "tool", "content": json.dumps(result)}
    answer = skill.answer.format(**arguments, **result)
    messages = (question, reply, told, assistant(answer))
    return Example("tool answer", messages, _offered(rng, split, skill))


def declining(rng: random.Random, split: Split) -> Example:
    """Tools are offered, but the question needs none."""
    makers = (chat.intent, lambda r, s: arithmetic.calculation(r, s, r.choice("+-")), _fact)
    plain = rng.choice(makers)(rng, split)
    tools = _offered(rng, split, rng.choice(SKILLS))
    return Example("tool not needed", plain.messages, tools, grade=plain.grade, key=plain.key)


def _fact(rng: random.Random, split: Split) -> Example:
    return world.question(rng, split, "capital", rng.choice(list(facts.CAPITALS)))


def make(rng: random.Random, split: Split) -> Example:
    """Any of the above."""
    return rng.choices((calling, answering, declining), (6, 4, 2))[0](rng, split)
