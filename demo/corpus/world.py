"""A few hundred facts about the world, each asked in many ways."""

import random
from dataclasses import dataclass

from demo.corpus import facts
from demo.corpus.example import Example, Split, asked, assistant, continued, user
from demo.corpus.phrasing import Phrasings, vary


@dataclass(frozen=True)
class Relation:
    """Subjects with their answers, the questions about them and the form of the answer.

    `answer` is a sentence with {s} and {a}; `stem`, where there is one, is the sentence cut
    before the answer, for text completion.
    """

    pairs: dict[str, str]
    questions: Phrasings
    answer: str
    stem: str = ""


RELATIONS = {
    "capital": Relation(
        facts.CAPITALS,
        Phrasings(
            train=(
                "what is the capital of {s}?",
                "what's the capital (city of|of) {s}?",
                "(which|what) city is the capital of {s}?",
                "(name|tell me|give me|say) the capital (city of|of) {s}.",
                "capital of {s}",
                "the capital of {s}?",
                "do you know the capital of {s}?",
                "can you tell me the capital of {s}?",
                "{s} has which capital?",
                "{s}: capital?",
                "what is the name of the capital of {s}?",
                "where is the government of {s}, its capital?",
                "I want to know the capital of {s}.",
                "what capital (does|has) {s} have?",
            ),
            held_out=(
                "could you name the capital city of {s}?",
                "which city serves as capital of {s}?",
                "I forgot the capital of {s}, what is it?",
            ),
        ),
        "The capital of {s} is {a}.",
        "The capital of {s} is",
    ),
    "country": Relation(
        {city: country for country, city in facts.CAPITALS.items()},
        Phrasings(
            train=(
                "{s} is the capital of (which|what) country?",
                "which country has {s} as its capital?",
                "of (which|what) country is {s} the capital?",
                "what country is {s} the capital of?",
                "whose capital is {s}?",
                "name the country whose capital is {s}.",
                "{s} is the capital of what?",
            ),
            held_out=(
                "what country has the capital {s}?",
                "{s} is the capital city of which country?",
            ),
        ),
        "{s} is the capital of {a}.",
        "{s} is the capital of",
    ),
    "continent": Relation(
        facts.CONTINENTS,
        Phrasings(
            train=(
                "(on|in) (which|what) continent is {s}?",
                "which continent is {s} (on|in)?",
                "what continent does {s} belong to?",
                "name the continent of {s}.",
                "{s} is (on|in|part of) which continent?",
                "continent of {s}",
                "tell me the continent of {s}.",
                "do you know what continent {s} is (on|in)?",
                "on what continent can I find {s}?",
            ),
            held_out=("what is the continent of {s}?", "to which continent does {s} belong?"),
        ),
        "{s} is in {a}.",
    ),
    "symbol": Relation(
        facts.SYMBOLS,
        Phrasings(
            train=(
                "what is the (chemical symbol|symbol) (of|for) {s}?",
                "what's the (chemical symbol|symbol) (of|for) {s}?",
                "(name|tell me|give me) the (chemical symbol|symbol) (of|for) {s}.",
                "(chemical symbol|symbol) (of|for) {s}",
                "which symbol (stands for|has) {s}?",
                "how is {s} written as a chemical symbol?",
                "{s}: symbol?",
            ),
            held_out=(
                "do you know the chemical symbol for {s}?",
                "what symbol does {s} have in chemistry?",
            ),
        ),
        "The chemical symbol of {s} is {a}.",
        "The chemical symbol of {s} is",
    ),
    "element": Relation(
        {symbol: element for element, symbol in facts.SYMBOLS.items()},
        Phrasings(
            train=(
                "which element has the (chemical symbol|symbol) {s}?",
                "what element is {s}?",
                "what does the (chemical symbol|symbol) {s} (stand for|mean)?",
                "{s} is the (chemical symbol|symbol) of (which|what) element?",
                "name the element with the symbol {s}.",
            ),
            held_out=("the symbol {s} belongs to which element?",),
        ),
        "{s} is the chemical symbol of {a}.",
    ),
    "number": Relation(
        facts.NUMBERS,
        Phrasings(
            train=(
                "what is the atomic number of {s}?",
                "what's the atomic number of {s}?",
                "(tell me|give me|name) the atomic number of {s}.",
                "atomic number of {s}",
                "which atomic number does {s} have?",
                "how many protons does {s} have?",
            ),
            held_out=("do you know the atomic number of {s}?", "{s} has which atomic number?"),
        ),
        "The atomic number of {s} is {a}.",
        "The atomic number of {s} is",
    ),
    "planet": Relation(
        facts.PLANETS,
        Phrasings(
            train=(
                "(what|which) is the {s} planet from the Sun?",
                "what's the {s} planet from the sun?",
                "(name|tell me) the {s} planet from the sun.",
                "which planet is {s} from the Sun?",
                "the {s} planet from the sun?",
                "what is the {s} planet?",
                "the {s} planet is called what?",
            ),
            held_out=("do you know the {s} planet from the Sun?", "which planet comes {s}?"),
        ),
        "The {s} planet from the Sun is {a}.",
        "The {s} planet from the Sun is",
    ),
    "place of planet": Relation(
        {planet: place for place, planet in facts.PLANETS.items()},
        Phrasings(
            train=(
                "which planet from the sun is {s}, by number?",
                "what place does {s} have from the sun?",
                "what number planet is {s}?",
                "where does {s} come in the order of the planets?",
                "what is the position of {s} from the sun?",
            ),
            held_out=("counting from the sun, what place has {s}?",),
        ),
        "{s} is the {a} planet from the Sun.",
    ),
    "mix": Relation(
        facts.MIXES,
        Phrasings(
            train=(
                "what colour do you get (if|when) you mix {s}?",
                "what (colour|color) do {s} make?",
                "mix {s}. What colour is it?",
                "mixing {s} gives what (colour|color)?",
                "{s} mixed is what (colour|color)?",
                "{s} together make which colour?",
            ),
            held_out=("which colour results from mixing {s}?", "if I mix {s}, what do I get?"),
        ),
        "Mixing {s} gives {a}.",
        "Mixing {s} gives",
    ),
    "colour": Relation(
        facts.COLOURS,
        Phrasings(
            train=(
                "what (colour|color) is {s}?",
                "(which|what) (colour|color) does {s} have?",
                "what is the (colour|color) of {s}?",
                "tell me the (colour|color) of {s}.",
                "{s} is what (colour|color)?",
                "(colour|color) of {s}?",
            ),
            held_out=("do you know the colour of {s}?", "what colour would you say {s} is?"),
        ),
        "The colour of {s} is {a}.",
        "The colour of {s} is",
    ),
    "young": Relation(
        facts.YOUNG,
        Phrasings(
            train=(
                "what is a (young|baby) {s} called?",
                "what do you call a (young|baby) {s}?",
                "what is the (name|word) (for|of) a (young|baby) {s}?",
                "a (young|baby) {s} is called what?",
                "tell me the (name|word) for a (young|baby) {s}.",
                "how is a (young|baby) {s} called?",
            ),
            held_out=("do you know what a baby {s} is called?", "what name has a young {s}?"),
        ),
        "A young {s} is called a {a}.",
        "A young {s} is called a",
    ),
    "legs": Relation(
        facts.LEGS,
        Phrasings(
            train=(
                "how many legs does a {s} have?",
                "how many legs has a {s}?",
                "what is the number of legs of a {s}?",
                "a {s} has how many legs?",
                "tell me how many legs a {s} has.",
                "number of legs of a {s}",
            ),
            held_out=("do you know how many legs a {s} has?", "on how many legs walks a {s}?"),
        ),
        "A {s} has {a} legs.",
        "The number of legs of a {s} is",
    ),
    "sound": Relation(
        facts.SOUNDS,
        Phrasings(
            train=(
                "what (sound|noise) does a {s} make?",
                "(which|what) is the (sound|noise) of a {s}?",
                "how does a {s} sound?",
                "a {s} makes what (sound|noise)?",
                "tell me the (sound|noise) of a {s}.",
            ),
            held_out=("do you know what sound a {s} makes?",),
        ),
        "A {s} {a}.",
    ),
    "month": Relation(
        dict(zip(facts.ORDINALS, facts.MONTHS, strict=True)),
        Phrasings(
            train=(
                "(what|which) is the {s} month?",
                "(what|which) is the {s} month of the year?",
                "which month is the {s}?",
                "(name|tell me) the {s} month of the year.",
                "the {s} month?",
                "what's the {s} month called?",
            ),
            held_out=("do you know the {s} month of the year?", "which month comes {s}?"),
        ),
        "The {s} month of the year is {a}.",
        "The {s} month of the year is",
    ),
    "month days": Relation(
        {m: str(n) for m, n in zip(facts.MONTHS, facts.MONTH_DAYS, strict=True)},
        Phrasings(
            train=(
                "how many days (are in|has|are there in) {s}?",
                "how many days does {s} have?",
                "{s} has how many days?",
                "what is the number of days in {s}?",
                "how long is {s} in days?",
                "tell me the number of days in {s}.",
            ),
            held_out=("do you know how many days {s} has?", "the month {s} has how many days?"),
        ),
        "{s} has {a} days.",
    ),
    "after": Relation(
        {a: b for them in (facts.MONTHS, facts.DAYS) for a, b in zip(them, them[1:] + them[:1], strict=True)},
        Phrasings(
            train=(
                "what comes after {s}?",
                "(which|what) (day|month|one) comes after {s}?",
                "what (follows|is after) {s}?",
                "what is next after {s}?",
                "{s} is followed by what?",
                "after {s} comes what?",
            ),
            held_out=("what comes right after {s}?", "do you know what follows {s}?"),
        ),
        "After {s} comes {a}.",
        "After {s} comes",
    ),
    "before": Relation(
        {b: a for them in (facts.MONTHS, facts.DAYS) for a, b in zip(them, them[1:] + them[:1], strict=True)},
        Phrasings(
            train=(
                "what comes before {s}?",
                "(which|what) (day|month|one) comes before {s}?",
                "what (precedes|is before) {s}?",
                "before {s} comes what?",
                "what was just before {s}?",
            ),
            held_out=("what comes right before {s}?", "do you know what is before {s}?"),
        ),
        "Before {s} comes {a}.",
        "Before {s} comes",
    ),
    "opposite": Relation(
        facts.OPPOSITES,
        Phrasings(
            train=(
                "what is the opposite of {s}?",
                "what's the opposite of {s}?",
                "(name|tell me|give me) the opposite of {s}.",
                "opposite of {s}",
                "which word is the opposite of {s}?",
                "the opposite of {s} is what?",
                "{s}: opposite?",
                "what word means the opposite of {s}?",
            ),
            held_out=("do you know the opposite of {s}?", "what would be the opposite of {s}?"),
        ),
        "The opposite of {s} is {a}.",
        "The opposite of {s} is",
    ),
    "sides": Relation(
        facts.SIDES,
        Phrasings(
            train=(
                "how many (sides|corners) does a {s} have?",
                "how many (sides|corners) has a {s}?",
                "a {s} has how many (sides|corners)?",
                "what is the number of (sides|corners) of a {s}?",
                "tell me how many sides a {s} has.",
            ),
            held_out=("do you know how many sides a {s} has?",),
        ),
        "A {s} has {a} sides.",
    ),
    "currency": Relation(
        facts.CURRENCIES,
        Phrasings(
            train=(
                "what is the (currency|money) of {s}?",
                "what's the currency (of|in) {s}?",
                "(which|what) (currency|money) does {s} use?",
                "(which|what) (currency|money) is used in {s}?",
                "(name|tell me) the currency of {s}.",
                "currency of {s}",
                "how do people pay in {s}, with which currency?",
            ),
            held_out=("do you know the currency of {s}?", "what currency do people use in {s}?"),
        ),
        "The currency of {s} is the {a}.",
        "The currency of {s} is the",
    ),
    "language": Relation(
        facts.LANGUAGES,
        Phrasings(
            train=(
                "(which|what) language (is spoken|do people speak|do they speak) in {s}?",
                "what is the language of {s}?",
                "what's the (main language|language) (of|in) {s}?",
                "(name|tell me) the language of {s}.",
                "language of {s}",
                "which language does {s} speak?",
            ),
            held_out=("do you know which language people speak in {s}?",),
        ),
        "People in {s} speak {a}.",
        "People in {s} speak",
    ),
    "single": Relation(
        facts.SINGLE,
        Phrasings(
            train=(
                "{s}?",
                "{s}",
                "can you tell me: {s}?",
                "do you know this: {s}?",
                "please answer: {s}?",
                "I would like to know: {s}?",
                "my question is: {s}?",
                "here is a question. {s}?",
            ),
            held_out=("answer this, please: {s}?", "{s}, do you know?"),
        ),
        "It is {a}.",
    ),
}
_FOLLOW_UPS = Phrasings(
    train=("and {s}?", "(and what|what|how) about {s}?", "and for {s}?", "now {s}.", "{s}?"),
    held_out=("and what of {s}?", "okay, and {s}?"),
)


def _name(rng: random.Random) -> str:
    weights = [len(r.pairs) ** 0.7 for r in RELATIONS.values()]
    return rng.choices(list(RELATIONS), weights)[0]


def _answer(relation: Relation, subject: str) -> tuple[str, str]:
    """The sentence that answers, and the part that must be right."""
    key = relation.pairs[subject]
    text = relation.answer.format(s=subject, a=key)
    return text[:1].upper() + text[1:], key


def question(rng: random.Random, split: Split, name: str, subject: str) -> Example:
    """One fact, asked in a chat."""
    relation = RELATIONS[name]
    text = relation.questions.pick(rng, split).format(s=subject)
    return asked("world facts", vary(rng, split, text), *_answer(relation, subject))


def stem(rng: random.Random, split: Split) -> Example:
    """A fact as text to complete; the stems are the same in both splits."""
    del split
    relation = rng.choice([r for r in RELATIONS.values() if r.stem])
    subject = rng.choice(list(relation.pairs))
    prompt = relation.stem.format(s=subject)
    key = relation.pairs[subject]
    return continued("plain text", prompt[:1].upper() + prompt[1:], f" {key}.", key)


def follow_up(rng: random.Random, split: Split) -> Example:
    """A question, its answer, and "and Spain?"."""
    name = rng.choice([n for n in RELATIONS if n not in ("single", "place of planet")])
    first, second = rng.sample(list(RELATIONS[name].pairs), 2)
    opening = question(rng, split, name, first).messages
    text, key = _answer(RELATIONS[name], second)
    words = _FOLLOW_UPS.pick(rng, split).format(s=second)
    ending = user(words[:1].upper() + words[1:]), assistant(text)
    return Example("follow-up", opening + ending, grade="contains", key=key)


def make(rng: random.Random, split: Split) -> Example:
    """Any of the above."""
    roll = rng.random()
    if roll < 0.12:
        return stem(rng, split)
    if roll < 0.20:
        return follow_up(rng, split)
    name = _name(rng)
    example = question(rng, split, name, rng.choice(list(RELATIONS[name].pairs)))
    if roll < 0.28:
        text, answer = (m["content"] for m in example.messages)
        return continued("plain text", text, " " + answer, example.key)
    return example
