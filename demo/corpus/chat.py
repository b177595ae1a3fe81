"""Polite talk, honest ignorance, system prompts, and remembering what was said."""

import random
from typing import NamedTuple

from demo.corpus import names, words
from demo.corpus.example import Example, Split, asked, assistant, system, user
from demo.corpus.phrasing import Phrasings, sentence, vary
from demo.corpus.world import RELATIONS

UNKNOWN = (
    "I don't know that. I am a small demo model: ask me about arithmetic, units, a few facts, or Penstock."
)


class Intent(NamedTuple):
    """Messages of users, and the reply to them."""

    said: Phrasings
    reply: str
    key: str


def _intent(reply: str, key: str, train: tuple[str, ...], held_out: tuple[str, ...]) -> Intent:
    return Intent(Phrasings(train, held_out), reply, key)


INTENTS = (
    _intent(
        "Hello! How can I help you?",
        "Hello",
        ("(hello|hi|hey|hey there|hi there|hello there|greetings|howdy)(!|.||,)",
         "good (morning|afternoon|evening|day)(!|.|)", "(hello|hi|hey) (Penstock|friend|you|model)(!|)",
         "nice to meet you(!|.|)", "anybody (there|home)?", "are you there?", "is anyone there?"),
        ("hello hello!", "hi, good to see you!", "a good day to you!"),
    ),
    _intent(
        "You are welcome!",
        "welcome",
        ("(thanks|thank you|thx|many thanks|thanks a lot|thank you very much)(!|.|)",
         "(thanks|thank you) for (your help|the help|that|this)(!|.|)", "that (was|is) helpful(, thanks|)(!|.)",
         "(great|perfect|nice|cool|good), (thanks|thank you)(!|.)", "I appreciate it(!|.|, thanks.)",
         "cheers(!|)", "that helped(!|.)"),
        ("thank you so much!", "wonderful, thanks!", "thanks again for everything."),
    ),
    _intent(
        "Goodbye! Have a nice day.",
        "Goodbye",
        ("(bye|goodbye|bye bye|good bye|farewell|see you|see you later|so long)(!|.|)",
         "good night(!|.|)", "(I have to|I must) go (now|)(.|!)",
         "(talk|see) you (soon|tomorrow|around|next week|another time)(!|.|)",
         "I am (going|leaving|out)(, bye|)(!|.)",
         "that is all(.|, bye.|, goodbye.)", "I am (leaving|done)(.| now.)", "have a (nice|good) day(!|.)"),
        ("okay, bye for now!", "see you next time!", "I am off, goodbye."),
    ),
    _intent(
        "I am the demo model of Penstock, a small language model that runs anywhere.",
        "demo model",
        ("who are you?", "what are you?", "what is your name?", "what's your name?", "who is this?",
         "(introduce|describe) yourself(.|!|, please.)", "tell me (about yourself|who you are)(.|!)",
         "are you (a human|a robot|a person|an AI|a bot|ChatGPT|a model)?", "do you have a name?",
         "who am I talking to?", "(which|what) model (are you|is this)?", "what should I call you?"),
        ("can you tell me who you are?", "with whom am I speaking?", "may I know your name?"),
    ),
    _intent(
        "I can do small arithmetic, convert units, answer a few facts, tell you about Penstock, "
        "extract JSON and call tools.",
        "arithmetic",
        ("what can you do?", "how can you help (me|)?", "what are you able to do?", "help(!|.|)",
         "what do you know?", "what are your (skills|abilities)?", "what can I ask (you|)?",
         "what are you good at?", "(can|could) you help me?", "I need help(.|!)", "what do you do?",
         "what should I ask?", "show me what you can do."),
        ("which things can you do?", "what kind of questions can I ask you?", "how could you help me?"),
    ),
    _intent(
        "I am fine, thank you. How can I help you?",
        "fine",
        ("how are you(| today| doing)?", "how do you (do|feel)?", "how is it going?", "how's it going?",
         "how are you (right now|lately|this morning|tonight|my friend)?",
         "(how do you|do you) feel (well|good|fine|)(| now)?",
         "is everything (ok|okay|well|good|all right)(| with you| today)?",
         "how are things?", "are you (well|ok|okay|fine)?", "what's up?", "how have you been?",
         "(hello|hi|hey), how are you(| today)?"),
        ("how are you these days?", "how are you feeling today?", "everything fine with you?"),
    ),
    _intent(
        "I was made by the Penstock project, which trained me on text that it wrote itself.",
        "Penstock project",
        ("who (made|created|trained|built|wrote) you?", "where do you come from?",
         "how were you (made|trained|built)?", "who is your (maker|creator|author)?",
         "(tell me|please say) who (made|trained|built|created) you(.|!)",
         "(can|could) you say who (built|trained) you?",
         "you were (made|built|trained) by whom?",
         "what were you trained on?", "where were you trained?", "who owns you?"),
        ("can you tell me who made you?", "by whom were you trained?"),
    ),
    _intent(
        "I am very small: a few million parameters.",
        "few million",
        ("how (big|large|small) are you?", "how many parameters do you have?", "what is your size?",
         "are you (big|large|small)?", "how many parameters (has|does) the demo model (have|)?"),
        ("what number of parameters do you have?", "do you know how big you are?"),
    ),
    _intent(
        "Why did the token cross the router? To get to the other shard.",
        "token cross",
        ("tell me a joke(.|!|, please.)", "(say|tell me) something funny(.|!)", "do you know (a joke|any jokes)?",
         "make me laugh(.|!)", "a joke, please.", "joke?", "can you tell (a joke|jokes)?"),
        ("I would like to hear a joke.", "could you tell me a joke?"),
    ),
    _intent(
        "I am glad to hear that!",
        "glad",
        ("I am (happy|well|fine|good|glad|great)(.|!| today.)", "(I'm|I am) doing (well|fine|great)(.|!)",
         "(well|good|great|fine)(!|.)", "(you are|you're) (great|nice|good|smart|clever|kind)(!|.|)",
         "(good|great|nice) (job|work|answer)(!|.|)", "well done(!|.|)", "I like you(.|!)"),
        ("I am feeling great!", "that was a good answer!"),
    ),
    _intent(
        "I am sorry. I am small and make mistakes.",
        "sorry",
        ("(that is|that's) (wrong|not right|false|incorrect)(.|!)", "(you are|you're) wrong(.|!)",
         "(wrong|no, wrong|incorrect)(!|.)", "you made a mistake(.|!)", "that is not (correct|true)(.|!)",
         "(bad|wrong) answer(.|!)", "I (believe|fear) (this|that|it) is (not right|false)(.|!)",
         "(there is|this is|you have) (an error|a mistake)(.|!)", "are you sure?", "I don't believe you(.|!)"),
        ("I think that is wrong.", "no, that is a mistake!"),
    ),
)  # fmt: skip
_TOPICS = (
    "the weather", "the news", "football", "the stock market", "my horoscope", "love", "politics",
    "quantum gravity", "the last election", "the lottery", "cooking", "fashion", "philosophy",
    "medieval history", "opera", "the Roman empire", "chess openings", "the law", "medicine",
    "basketball", "music", "the theatre", "novels", "taxes", "trade", "aeroplanes", "trucks", "peace", "the army",
    "painting", "the past", "robots", "the universe", "religion", "gardening", "the president", "sleep", "jazz",
)  # fmt: skip
_NEW_TOPICS = ("tennis", "the movies", "poetry", "the economy", "car engines", "the war")
OUTSIDE = Phrasings(
    train=(
        "what do you think about {t}?",
        "tell me (about|something about) {t}.",
        "explain {t}.",
        "what (is new in|can you tell me about) {t}?",
        "write (a poem|a story|an essay|a song|a book) about {t}.",
        "how is {t} today?",
        "(what are|give me|share) your (thoughts|views|ideas) on {t}(.|?)",
        "(do you like|are you interested in|can you discuss) {t}?",
        "I want to (talk|hear|learn) about {t}.",
        "(what can you say|what should I know|is there anything to say) about {t}?",
        "(discuss|describe|review|judge|summarise) {t}.",
        "who is the best at {t}?",
        "who is {n}?",
        "who was {n}?",
        "(have you heard of|do you know|are you familiar with) {n}?",
        "is there (somebody|a man|a woman) called {n}?",
        "where does {n} live?",
        "how old is {n}?",
        "when was {n} born?",
        "what did {n} (write|invent|discover|say)?",
        "where is (the town of|) {p}?",
        "how many people live in {p}?",
        "when was {p} founded?",
        "how (far|long) is (it|the way) to {p}?",
        "how (far from here|distant|remote) is {p}?",
        "what is the distance to {p}?",
        "how (big|old|large|close|cold) is {p}?",
        "what is a {w}?",
        "what does {w} mean?",
        "(explain|describe|look up|interpret|clarify|translate) the word {w}.",
        "(explain|interpret|clarify|decipher) {w}.",
        "what does the word {w} (mean|stand for)?",
        "(what is|give me) the definition of {w}.",
        "what is {w}?",
        "what is the meaning of {w}?",
        "what will happen (tomorrow|next year|in the future)?",
        "what (time|day|date) is it?",
        "is it going to rain (today|tomorrow|)?",
        "who won the (game|match|race|election|world cup)?",
        "translate {w} into (French|German|Spanish).",
    ),
    held_out=(
        "what is your opinion of {t}?",
        "do you know a person called {n}?",
        "what would you say about {t}?",
        "how far away is {p}?",
        "define the word {w}.",
    ),
)
_STRANGE = ("capital", "continent", "currency", "language", "symbol", "number", "young")
SYSTEMS = Phrasings(
    train=(
        "you are a (helpful|polite|kind|friendly|careful) assistant.",
        "you are a helpful assistant. Answer (briefly|shortly|clearly|correctly|truthfully).",
        "(answer|reply) (briefly|politely|clearly|in one sentence|truthfully|in English).",
        "you are Penstock's demo model.",
        "help the user.",
        "be (brief|polite|concise|kind|precise).",
        "you answer questions about {t}.",
        "today is {d}.",
        "the user's name is {n}.",
        "you are a chat bot on a web page. Keep answers short.",
    ),
    held_out=("you are an assistant that gives short answers.", "be helpful and honest."),
)
_DAYS = ("Monday", "Tuesday", "Friday", "Sunday", "the first of May", "a rainy day")
MY_NAME = Phrasings(
    train=(
        "my name is {n}.", "I am {n}.", "I'm {n}.", "call me {n}.", "(hi|hello), (I am|my name is) {n}.",
        "you can call me {n}.", "this is {n}.", "{n} is my name.",
    ),
    held_out=("please call me {n}.", "people call me {n}.", "hey, my name is {n}!"),
)  # fmt: skip
ASK_NAME = Phrasings(
    train=(
        "what is my name?", "what's my name?", "who am I?", "do you (remember|know) my name?",
        "tell me my name.", "(say|repeat) my name.", "how am I called?",
    ),
    held_out=("can you remember what I am called?", "could you tell me my name?"),
)  # fmt: skip
BOT_NAME = Phrasings(
    train=("your name is {n}.", "you are {n}.", "you are called {n}.", "you are {n}, an assistant."),
    held_out=("you are an assistant called {n}.",),
)
ASK_BOT = Phrasings(
    train=("what is your name?", "who are you?", "what's your name?", "tell me your name.",
           "how are you called?", "introduce yourself."),
    held_out=("may I know your name?", "can you tell me who you are?"),
)  # fmt: skip
SAY = Phrasings(
    train=("say {w}.", "repeat {w}.", "repeat after me: {w}.", "write {w}.", "(please say|please repeat) {w}.",
           "say the word {w}.", "echo {w}.", "can you say {w}?"),
    held_out=("please write the word {w}.", "just say {w}."),
)  # fmt: skip


def intent(rng: random.Random, split: Split) -> Example:
    """A greeting, a thank-you, a question about the model itself."""
    it = rng.choice(INTENTS)
    said = sentence(it.said.pick(rng, split))
    if split == "train" and rng.random() < 0.3:
        said = rng.choice((said.lower(), said.rstrip("?!."), said.upper()))
    return asked("chat", said, it.reply, it.key)


def outside(rng: random.Random, split: Split) -> Example:
    """A question about something the model cannot know."""
    topics = _TOPICS if split == "train" else _NEW_TOPICS
    topic = rng.choice(topics)
    if split == "train" and rng.random() < 0.4:
        topic = f"{rng.choice(('the', 'a', 'my'))} {words.ordinary(rng, split)}"
    drawn = {
        "t": topic,
        "n": names.full_name(rng, split),
        "p": names.invented(rng, split),
        "w": names.invented(rng, split).lower(),
    }
    question = OUTSIDE.pick(rng, split).format(**drawn)
    if rng.random() < 0.25:
        invented = names.invented(rng, split)
        question = RELATIONS[rng.choice(_STRANGE)].questions.pick(rng, split).format(s=invented)
    return asked("don't know", vary(rng, split, question), UNKNOWN, "I don't know")


_COPIED = (names.invented, names.first_name, names.place, words.ordinary, words.ordinary)


def echo(rng: random.Random, split: Split) -> Example:
    """A word to repeat, as practice in copying."""
    count = rng.choice((1, 1, 2, 3, 5, 8, 12))
    word = " ".join(rng.choice(_COPIED)(rng, split) for _ in range(count))
    word = rng.choice((word, word, word.lower(), str(rng.randrange(10000))))
    return asked("chat", vary(rng, split, SAY.pick(rng, split).format(w=word)), f"{word}", word)


def introduction(rng: random.Random, split: Split) -> Example:
    """The person's name, and later the question for it."""
    name = names.first_name(rng, split)
    said = sentence(MY_NAME.pick(rng, split).format(n=name))
    messages = [user(said), assistant(f"Nice to meet you, {name}!")]
    for _ in range(rng.choice((0, 1, 1, 2))):
        messages.extend(intent(rng, split).messages)
    messages += [user(sentence(ASK_NAME.pick(rng, split))), assistant(f"Your name is {name}.")]
    return Example("memory", tuple(messages), grade="contains", key=name)


def renamed(rng: random.Random, split: Split) -> Example:
    """A system prompt that gives the model another name."""
    name = names.first_name(rng, split)
    scene = system(sentence(BOT_NAME.pick(rng, split).format(n=name)))
    question = sentence(ASK_BOT.pick(rng, split))
    messages = (scene, user(question), assistant(f"My name is {name}."))
    return Example("memory", messages, grade="contains", key=name)


def scene(rng: random.Random, split: Split) -> str:
    """A system prompt that changes nothing."""
    drawn = {"t": rng.choice(_TOPICS), "n": names.first_name(rng, split), "d": rng.choice(_DAYS)}
    return sentence(SYSTEMS.pick(rng, split).format(**drawn))


def make(rng: random.Random, split: Split) -> Example:
    """Any of the above."""
    makers = (intent, outside, echo, introduction, renamed)
    return rng.choices(makers, (10, 6, 14, 5, 2))[0](rng, split)
