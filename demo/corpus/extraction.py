"""Reading a sentence and writing what was asked for as JSON."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from demo.corpus import names, records, words
from demo.corpus.example import Example, Message, Split, assistant, system, user
from demo.corpus.phrasing import Phrasings, expand, sentence

Value = str | int
Draw = Callable[[random.Random, Split], Value]

_COLOURS = ["red", "blue", "green", "black", "white", "yellow", "brown", "grey", "pink", "purple", "orange"]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def _one_of(train: Sequence[str], test: Sequence[str]) -> Draw:
    def draw(rng: random.Random, split: Split) -> Value:
        if split == "test":
            return rng.choice(test)
        drawn = (rng.choice(train), words.ordinary(rng, split), names.invented(rng, split).lower())
        return rng.choices(drawn, (3, 6, 2))[0]

    return draw


def _always(choices: Sequence[str]) -> Draw:
    return lambda rng, split: rng.choice(choices)


def _between(low: int, high: int) -> Draw:
    return lambda rng, split: rng.randint(low, rng.choice((high // 10 + low, high)))


def _email(rng: random.Random, split: Split) -> Value:
    name, host = names.first_name(rng, split).lower(), names.invented(rng, split).lower()
    return f"{name}@{host}.{rng.choice(('com', 'org', 'net', 'example'))}"


def _phone(rng: random.Random, split: Split) -> Value:
    del split
    return "-".join(str(rng.randrange(10**n // 10, 10**n)) for n in rng.choice(((3, 4), (3, 3, 4))))


def _time(rng: random.Random, split: Split) -> Value:
    del split
    return f"{rng.randint(1, 23)}:{rng.choice(('00', '15', '30', '45', '10', '20'))}"


@dataclass(frozen=True)
class Domain:
    """The fields of a kind of sentence, and its sentences."""

    fields: dict[str, Draw]
    sentences: Phrasings


DOMAINS = (
    Domain(
        {
            "name": names.first_name,
            "age": _between(1, 99),
            "city": names.place,
            "job": _one_of(words.JOBS, words.HELD_OUT_JOBS),
        },
        Phrasings(
            train=(
                "{name} is {age} years old and lives in {city}, working as a {job}.",
                "{name}, {age}, is a {job} (from|in) {city}.",
                "{name} is a {age} year old {job} (from|in) {city}.",
                "I am {name}, {age} years old, a {job} in {city}.",
                "In {city} lives a {job} called {name}, aged {age}.",
                "The {job} {name} lives in {city} and is {age}.",
                "My name is {name}, I live in {city}, I am {age} and work as a {job}.",
                "{name} works as a {job} in {city}. {name} is {age}.",
                "At {age}, {name} moved to {city} to be a {job}.",
                "Meet {name}: {job}, {age}, {city}.",
                "Their {job}, {name}, is {age} and comes from {city}.",
                "Your new {job} is called {name}, lives in {city} and is {age} years old.",
                "{age} years old and born in {city}, {name} is a good {job}.",
                "A {job} of {age} years, {name} has moved to {city}.",
                "We know {name} in {city}, who is {age} and a {job}.",
                "{name} (in|from) {city} has the job of a {job} at the age of {age}.",
                "My {job}, called {name}, lives in {city} and is now {age}.",
                "The {city} {job} {name} turned {age}.",
            ),
            held_out=(
                "{name} from {city} works as a {job} and is {age} years old.",
                "Our {job} is {name}, who is {age} and lives in {city}.",
            ),
        ),
    ),
    Domain(
        {
            "customer": names.first_name,
            "item": _one_of(words.THINGS, words.HELD_OUT_THINGS),
            "quantity": _between(2, 99),
            "price": _between(1, 500),
        },
        Phrasings(
            train=(
                "{customer} (ordered|bought|wants) {quantity} {item} for {price} euros.",
                "Order: {quantity} {item} for {customer}, {price} euros.",
                "{customer} paid {price} euros for {quantity} {item}.",
                "Please send {quantity} {item} to {customer}. The price is {price} euros.",
                "For {price} euros, {customer} got {quantity} {item}.",
                "{quantity} {item} were sold to {customer} at {price} euros.",
                "We sold {customer} {quantity} {item}; that makes {price} euros.",
                "{customer} needs {quantity} {item} and (offers|gives) {price} euros.",
                "{customer} asked for {quantity} {item}. That is {price} euros.",
                "{quantity} {item} leave today; {customer} has paid {price} euros.",
                "{quantity} {item} at {price} euros: {customer}.",
                "{customer} will (take|get) {quantity} {item} and (pay|send) {price} euros.",
                "{customer} takes {quantity} {item} and owes {price} euros.",
                "{customer} likes {quantity} {item}, which are {price} euros.",
                "{customer} gets {quantity} {item}, and we get {price} euros.",
                "{quantity} {item} (travel|come) to {customer}; price: {price} euros.",
                "{quantity} {item} (move|ship|fly|belong|run) to {customer} (at|with) {price} euros.",
                "The {item} go to {customer}: {quantity} for {price} euros.",
                "Here come {quantity} {item}: {customer} spends {price} euros.",
                "The {quantity} {item} of {customer} cost {price} euros.",
                "A parcel with {quantity} {item} is for {customer}, who owes {price} euros.",
            ),
            held_out=(
                "{customer} would like {quantity} {item} and pays {price} euros.",
                "{quantity} {item} go to {customer} for {price} euros.",
            ),
        ),
    ),
    Domain(
        {
            "event": _one_of(words.EVENTS, words.HELD_OUT_EVENTS),
            "day": _always(_DAYS),
            "time": _time,
            "place": names.place,
        },
        Phrasings(
            train=(
                "The {event} is on {day} at {time} in {place}.",
                "The {event} in {place} (starts|begins) on {day} at {time}.",
                "On {day} there is a {event} in {place} at {time}.",
                "Come to the {event} in {place}, {day}, {time}.",
                "Reminder: {event}, {day} at {time}, {place}.",
                "In {place}, the {event} will be held on {day} at {time}.",
                "We meet for the {event} at {time} on {day} in {place}.",
                "See you at the {event}: {day}, {place}, {time}.",
                "{day}, {time}: {event} in {place}.",
                "At {time}, {place} has a {event} on {day}.",
                "This {day} {place} will see a {event} at {time}.",
                "Do not miss the {event} at {time} in {place} on {day}.",
                "Attend the {event} in {place} on {day} at {time}.",
                "Enjoy the {event} at {time}, {day}, in {place}.",
                "From {time} on {day}, the {event} happens in {place}.",
                "Visit {place} on {day}, where a {event} opens at {time}.",
            ),
            held_out=(
                "Join the {event} on {day} in {place} at {time}.",
                "At {time} on {day} the {event} takes place in {place}.",
            ),
        ),
    ),
    Domain(
        {"name": names.full_name, "email": _email, "phone": _phone},
        Phrasings(
            train=(
                "{name} can be reached at {email} or {phone}.",
                "Contact: {name}, {email}, {phone}.",
                "Write to {name} at {email}, or call {phone}.",
                "The phone of {name} is {phone} and the email is {email}.",
                "Call {name} on {phone}; the address is {email}.",
                "{name}, phone {phone}, email {email}.",
                "My name is {name}. My email is {email} and my phone is {phone}.",
                "You can call {name} on {phone} or write to {email}.",
                "Phone {phone} or email {email} to talk to {name}.",
                "{email} belongs to {name}, and so does {phone}.",
                "One gets {name} at {phone}, mail goes to {email}.",
                "Ask {name} by phone at {phone} or with a mail to {email}.",
                "They phone {name} at {phone} or mail {email}.",
                "You find {name} at {email}, or at {phone} by phone.",
                "You (meet|get|call|see) {name} by phone at {phone}, by email at {email}.",
                "We reach {name} by (email|mail) at {email} or by phone at {phone}.",
                "I know {name}: phone {phone}, email {email}.",
                "Try {name} first: {phone}, else {email}.",
                "We met {name}, whose phone is {phone} and whose email is {email}.",
                "Our guest {name} has the phone {phone} and the mail address {email}.",
                "{name} uses {email} and answers the phone at {phone}.",
            ),
            held_out=(
                "You reach {name} by phone at {phone} or by email at {email}.",
                "{name} has the email {email} and the phone number {phone}.",
            ),
        ),
    ),
    Domain(
        {
            "colour": _always(_COLOURS),
            "product": _one_of(words.THINGS, words.HELD_OUT_THINGS),
            "size": _always(["small", "medium", "large"]),
            "weight": _between(1, 900),
        },
        Phrasings(
            train=(
                "The {product} are {colour}, {size}, and weigh {weight} grams.",
                "{size} {colour} {product}, {weight} grams.",
                "I have {product} in {colour}, size {size}, weight {weight} grams.",
                "Weighing {weight} grams, these {size} {product} are {colour}.",
                "For sale: {colour} {product}, {size}, {weight} grams.",
                "Those {colour} {product} are {size} and have a weight of {weight} grams.",
                "All {size} {product} come in {colour}; they weigh {weight} grams.",
                "Our {size} {product} are {colour} and weigh {weight} grams.",
                "{colour} and {size}, the {product} weigh {weight} grams.",
                "{weight} grams: {product}, {size}, {colour}.",
                "My {product} weigh {weight} grams, are {size} and look {colour}.",
            ),
            held_out=("These {size} {product} weigh {weight} grams and are {colour}.",),
        ),
    ),
)
ASKS = Phrasings(
    train=(
        "(extract|find|get|read) {keys} from this text (as|in) JSON: {text}",
        "(extract|give|return|write|list) {keys} as JSON: {text}",
        "{text} (Extract|Give|Return|Write) {keys} as JSON.",
        "Text: {text}\n(Give|Return|Write) JSON with {keys}.",
        "(turn|convert) this into JSON with {keys}: {text}",
        "JSON with {keys}: {text}",
        "(read|look at) this: {text} (Return|Give me) a JSON object with {keys}.",
        "(return|write|make) a JSON object with the (keys|fields) {keys}: {text}",
        "what are {keys} here? Answer in JSON. {text}",
        "as JSON, please, {keys}: {text}",
        "{text}\nJSON with {keys}, please.",
        "given the (line|note|message) that follows, (write|give) {keys} in JSON.\n{text}",
        "with the sentence below, (make|build|fill) a JSON object of {keys}.\n{text}",
        "for the text below, (write|give|list) {keys} in JSON.\n{text}",
        "of the (text|words|lines) below, I need {keys} in JSON.\n{text}",
        "(using|after reading) the text below, (write|make) JSON with {keys}.\n{text}",
        "out of the next (sentence|line), pull {keys} as JSON: {text}",
        "below is a (text|note|message). (I want|I need|Return|Show) {keys} in JSON.\n\n{text}",
        "here is (a note|some text): {text}\n(Which|What) {keys}? Use JSON.",
        "in the (text|message) after this line, find {keys} and reply in JSON.\n{text}",
        "{text} (Reply|Respond) with JSON that (has|holds|contains) {keys}.",
        "{text} I need {keys} in a JSON object.",
        "{text}\n\nPlease (give|return|list) {keys} in JSON.",
        "please (return|give me|write) {keys} in JSON for this: {text}",
        "(parse|summarise|take) this and answer with {keys} in JSON: {text}",
        '(extract|return) {keys} as JSON from "{text}"',
        "only {keys}, as JSON: {text}",
    ),
    held_out=(
        "please extract {keys} as JSON from the following: {text}",
        "from the text below, return {keys} in JSON.\n{text}",
        "{text} Please answer with a JSON object that has {keys}.",
    ),
)
_LIST_ASKS = (
    "(write|give|return) (these words|this|the words) as a JSON list: {items}",
    "a JSON (list|array) of {items}",
    "{items}\n(Put|Turn|Write) (this|these|them) (in|into|as) a JSON array.",
    "make a JSON (list|array) with {items}.",
    "list as JSON: {items}",
)
_CHATTER = (
    "Hello everyone.",
    "Nothing else is new.",
    "The {w} is fine.",
    "By the way, I like the {w}.",
    "More about the {w} later.",
    "Good news today!",
    "Please keep this short.",
    "Yours, the {w} team.",
)
_SYSTEM_ASKS = (
    "(extract|return|give) {keys} as JSON.",
    "you (extract|return) {keys} as JSON.",
    "answer (in|with) JSON with {keys}.",
    "read the text and (return|write) JSON with the (keys|fields) {keys}.",
)


def _listed(rng: random.Random, keys: list[str]) -> str:
    """The keys as a person lists them: "name, age and city"."""
    if len(keys) == 1:
        return rng.choice((f"the {keys[0]}", keys[0]))
    style = rng.random()
    if style < 0.3:
        return ", ".join(keys)
    head, last = ", ".join(keys[:-1]), keys[-1]
    return f"the {head} and {last}" if style < 0.6 else f"{head} and {last}"


def _listing(rng: random.Random) -> Example:
    """Words to write as a JSON list: dense practice in copying, for training only."""
    makers = (words.ordinary, words.ordinary, words.ordinary, names.invented, names.first_name, names.place)
    items = [str(rng.choice(makers)(rng, "train")) for _ in range(rng.randint(2, 8))]
    joint = rng.choice((", ", ", ", " ", "; ", " and ", "\n"))
    ask = sentence(rng.choice(expand(rng.choice(_LIST_ASKS))).format(items=joint.join(items)))
    return Example("extraction", (user(ask), assistant(json.dumps(items))), grade="json")


def _scene(rng: random.Random, split: Split) -> tuple[str, dict[str, Value]]:
    """A text and its fields; training also reads loose notes, and chatter around the text."""
    if split == "train" and rng.random() < 0.3:
        return records.draw(rng, split)
    domain = rng.choice(DOMAINS)
    values = {key: draw(rng, split) for key, draw in domain.fields.items()}
    text = sentence(domain.sentences.pick(rng, split).format(**values))
    if split == "train" and rng.random() < 0.2:
        chatter = rng.choice(_CHATTER).format(w=words.ordinary(rng, split))
        text = rng.choice((f"{chatter} {text}", f"{text} {chatter}"))
    return text, values


def make(rng: random.Random, split: Split) -> Example:
    """A text, a request for some of its fields, and the JSON."""
    if split == "train" and rng.random() < 0.25:
        return _listing(rng)
    text, values = _scene(rng, split)
    keys = rng.sample(list(values), rng.randint(1, len(values)))
    answer = assistant(json.dumps({key: values[key] for key in keys}))
    listed = _listed(rng, keys)
    if split == "train" and rng.random() < 0.15:
        order = rng.choice(expand(rng.choice(_SYSTEM_ASKS))).format(keys=listed)
        messages: tuple[Message, ...] = (system(sentence(order)), user(text), answer)
    else:
        ask = sentence(ASKS.pick(rng, split).format(keys=listed, text=text))
        messages = (user(ask), answer)
    return Example("extraction", messages, grade="json")
