"""Sums and differences as short stories about things and people."""

import random

from demo.corpus import arithmetic, names, words
from demo.corpus.example import Example, Split, asked
from demo.corpus.phrasing import Phrasings, sentence, vary

_THINGS = ("apples", "books", "coins", "stones", "letters", "cards", "eggs", "tickets")
_PEOPLE = ("Anna", "Ben", "Carla", "David", "Eva", "Farid", "Mia", "Noah", "She", "He", "I")
MORE = Phrasings(
    train=(
        "{who} (has|had) {a} {things} and (gets|buys|finds) {b} more. How many now?",
        "there are {a} {things}. Then {b} more arrive. How many are there?",
        "{who} picked {a} {things}, then {b} more {things}. How many in total?",
        "{who} owns {a} {things} and (receives|wins|is offered) {b} more. How many {things} (in all|altogether)?",
        "{who} (has|had) {a} {things}. A friend (gave|brought|sent) {b} more. How many {things} now?",
        "{who} (keeps|kept|collected) {a} {things} and later (was sent|was handed) {b}. What is the total?",
        "after getting {b} {things}, {who} added them to the {a} already there. How many {things} in all?",
        "(a box|a shelf|a bag|a room) holds {a} {things}. {who} puts in {b} more. How many {things} are in it?",
        "with {a} {things} at first and {b} more later, how many {things} (does|did) {who} have?",
        "{who} counted {a} {things} on Monday and {b} on Tuesday. How many (together|{things} is that together)?",
        "one shop has {a} {things}, another {b}. How many {things} do they have together?",
        "{who} (made|bought|sold) {a} {things} yesterday and {b} today. How many {things} (in total|altogether)?",
        "{a} {things} were here and {b} more came. How many {things} are here now?",
        "if {who} has {a} {things} and (gets|is given) another {b}, how many {things} (is it|are there) then?",
    ),
    held_out=("{who} owned {a} {things} and was given {b} more. How many {things} is that?",),
)
FEWER = Phrasings(
    train=(
        "{who} (has|had) {a} {things} and (loses|sells|gives away) {b}. How many are left?",
        "there are {a} {things}. {b} are taken away. How many are left?",
        "of {a} {things}, {b} broke. How many remain?",
        "{who} owns {a} {things} and (throws away|lends|returns) {b}. How many {things} (remain|are left over)?",
        "{who} (has|had) {a} {things}. A friend (took|stole|borrowed) {b}. How many {things} are left?",
        "{who} (kept|collected|bought) {a} {things} and gave {b} of them to (a sister|a child|a school). What is left?",
        "after {b} of {a} {things} were (sold|eaten|lost), how many {things} (are left|remain)?",
        "(a box|a shelf|a bag|a room) holds {a} {things}. {who} takes out {b}. How many {things} are in it now?",
        "{who} sold {b} of {a} {things}. How many {things} does that leave?",
        "{who} started with {a} {things} and (lost|spent|used) {b}. How many {things} are there now?",
        "{a} {things} were here and {b} went away. How many {things} are still here?",
        "if {who} has {a} {things} and (gives|hands|mails) {b} to a teacher, how many {things} are left?",
        "{who} needs {a} {things} and has {b}. How many {things} are missing?",
    ),
    held_out=("{who} owned {a} {things} and gave {b} to a friend. How many {things} are left?",),
)


def _cast(rng: random.Random, split: Split) -> dict[str, str]:
    """The person of the story, and the things that are counted."""
    if split == "test" or rng.random() < 0.4:
        return {"who": rng.choice(_PEOPLE), "things": rng.choice(_THINGS)}
    return {"who": names.first_name(rng, split), "things": rng.choice(words.THINGS)}


def make(rng: random.Random, split: Split) -> Example:
    """A story, and the sum or difference that it asks for."""
    it = arithmetic.draw(rng, split, rng.choice("+-"))
    if it.result < 0:
        it = arithmetic.draw(rng, split, "+" if rng.random() < 0.5 else "-")
    if it.result < 0:
        it = arithmetic.draw(rng, split, "+")
    phrasings = MORE if it.sign == "+" else FEWER
    question = phrasings.pick(rng, split).format(a=it.a, b=it.b, **_cast(rng, split))
    return asked("word problems", vary(rng, split, sentence(question)), it.answer(), it.written())
