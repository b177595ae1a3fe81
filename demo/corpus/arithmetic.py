"""Sums, differences, small products and quotients, comparisons.

About one pair of operands in twenty is held out of training, with every phrasing.
"""

import random
import zlib
from typing import NamedTuple

from demo.corpus.example import Example, Split, asked, continued
from demo.corpus.phrasing import Phrasings, vary

ADDITION = Phrasings(
    train=(
        "what is {a} + {b}?",
        "what's {a} plus {b}?",
        "{a} + {b}",
        "{a}+{b}",
        "{a} + {b} =",
        "{a}+{b}=?",
        "{a} plus {b}",
        "(calculate|compute|work out|evaluate|solve|find) {a} + {b}.",
        "(calculate|compute|work out|find|give me) the sum of {a} and {b}.",
        "what (is|would be) the sum of {a} and {b}?",
        "add {a} and {b}.",
        "(please|can you|could you) add {b} to {a}?",
        "how much is {a} plus {b}?",
        "how much is {a} + {b}?",
        "what do you get (if|when) you add {b} to {a}?",
        "(tell me|I need|I want) {a} + {b}.",
        "what does {a} + {b} equal?",
        "{a} + {b} equals what?",
        "if I add {a} and {b}, what do I get?",
        "what is the total of {a} and {b}?",
        "{a} increased by {b} is what?",
        "what do {a} and {b} make(| together| in all)?",
        "(add up|sum up|put together) {a} and {b}.",
        "{a} and {b}, added up, (give|are) what?",
    ),
    held_out=(
        "could you tell me what {a} + {b} is?",
        "what do {a} and {b} add up to?",
        "do you know the sum of {a} and {b}?",
        "what is {a} plus {b} in total?",
        "please work out {a} plus {b} for me.",
    ),
)
SUBTRACTION = Phrasings(
    train=(
        "what is {a} - {b}?",
        "what's {a} minus {b}?",
        "{a} - {b}",
        "{a}-{b}",
        "{a} - {b} =",
        "{a}-{b}=?",
        "{a} minus {b}",
        "(calculate|compute|work out|evaluate|solve|find) {a} - {b}.",
        "(calculate|compute|work out|find|give me) the difference between {a} and {b}.",
        "what (is|would be) the difference of {a} and {b}?",
        "subtract {b} from {a}.",
        "(please|can you|could you) subtract {b} from {a}?",
        "how much is {a} minus {b}?",
        "how much is {a} - {b}?",
        "what do you get (if|when) you take {b} from {a}?",
        "(tell me|I need|I want) {a} - {b}.",
        "what does {a} - {b} equal?",
        "{a} - {b} equals what?",
        "take {b} away from {a}.",
        "what is left if I take {b} from {a}?",
        "{a} decreased by {b} is what?",
    ),
    held_out=(
        "could you tell me what {a} - {b} is?",
        "what remains when you subtract {b} from {a}?",
        "do you know the difference of {a} and {b}?",
        "what is {a} less {b}, that is {a} minus {b}?",
        "please work out {a} minus {b} for me.",
    ),
)
MULTIPLICATION = Phrasings(
    train=(
        "what is {a} * {b}?",
        "what is {a} x {b}?",
        "what's {a} times {b}?",
        "{a} * {b}",
        "{a} * {b} =",
        "{a}*{b}",
        "{a} times {b}",
        "(calculate|compute|work out|find) {a} * {b}.",
        "(find|give me|what is) the product of {a} and {b}.",
        "multiply {a} by {b}.",
        "multiply {a} and {b}.",
        "how much is {a} times {b}?",
        "what does {a} * {b} equal?",
        "what do you get if you multiply {a} by {b}?",
    ),
    held_out=(
        "could you tell me what {a} * {b} is?",
        "do you know the product of {a} and {b}?",
        "please work out {a} times {b} for me.",
    ),
)
DIVISION = Phrasings(
    train=(
        "what is {a} / {b}?",
        "what's {a} divided by {b}?",
        "{a} / {b}",
        "{a} / {b} =",
        "{a}/{b}",
        "{a} divided by {b}",
        "(calculate|compute|work out|find) {a} / {b}.",
        "divide {a} by {b}.",
        "how much is {a} divided by {b}?",
        "what does {a} / {b} equal?",
        "what do you get if you divide {a} by {b}?",
        "how many times does {b} go into {a}?",
    ),
    held_out=(
        "could you tell me what {a} / {b} is?",
        "please work out {a} divided by {b} for me.",
    ),
)
LARGER = Phrasings(
    train=(
        "(which|what) is (larger|bigger|greater), {a} or {b}?",
        "which (number|one) is (larger|bigger|greater): {a} or {b}?",
        "is {a} or {b} the (larger|bigger|greater) number?",
        "(compare|please compare) {a} and {b}.",
        "which of {a} and {b} is (larger|bigger|greater)?",
        "what is the (larger|bigger|greater) number, {a} or {b}?",
        "{a} or {b}, which is (larger|bigger|greater)?",
        "(max|maximum) of {a} and {b}?",
    ),
    held_out=(
        "between {a} and {b}, which is larger?",
        "tell me which is bigger, {a} or {b}.",
    ),
)
SMALLER = Phrasings(
    train=(
        "(which|what) is (smaller|less|lower), {a} or {b}?",
        "which (number|one) is (smaller|lower): {a} or {b}?",
        "is {a} or {b} the (smaller|lower) number?",
        "which of {a} and {b} is (smaller|lower)?",
        "what is the (smaller|lower) number, {a} or {b}?",
        "{a} or {b}, which is (smaller|lower)?",
        "(min|minimum) of {a} and {b}?",
    ),
    held_out=(
        "between {a} and {b}, which is smaller?",
        "tell me which is lower, {a} or {b}.",
    ),
)


class Sum(NamedTuple):
    """Two operands, the sign between them, and the result."""

    a: int
    sign: str
    b: int
    result: int

    def written(self) -> str:
        """The equation at the end of every answer."""
        return f"{self.a} {self.sign} {self.b} = {self.result}"

    def restated(self) -> str:
        """The task as the answer restates it: "3 - 45 = -(45 - 3)" is swapped before any borrowing."""
        task = f"{self.a} {self.sign} {self.b}"
        return f"{task} = -({self.b} - {self.a})" if self.result < 0 else task

    def working(self) -> str:
        """The small steps, one by one, where the calculation needs them."""
        if self._is_simple():
            return ""
        return ", ".join(_STEPS[self.sign](self.a, self.b))

    def _is_simple(self) -> bool:
        if self.sign == "*":
            return max(self.a, self.b) <= 10 or self.result == 0
        return self.sign in "+-" and max(self.a, self.b) < 10

    def answer(self) -> str:
        """The task restated, the working, and the equation."""
        working = self.working()
        return f"{self.restated()}: {working}, so {self.written()}." if working else f"{self.written()}."

    def rest(self) -> str:
        """The text after the equals sign: the working in brackets, and the result."""
        working = self.working()
        swap = f"{self.b} - {self.a}: " if self.result < 0 else ""
        return f" ({swap}{working}) {self.result}" if working else f" {self.result}"


def _digits(a: int, b: int) -> list[tuple[int, int]]:
    """The digits of both numbers, the last digit first; the shorter number is padded with zeros."""
    width = len(str(max(a, b)))
    pairs = zip(f"{a:0{width}}", f"{b:0{width}}", strict=True)
    return [(int(x), int(y)) for x, y in pairs][::-1]


def _carries(a: int, b: int) -> list[str]:
    """Column addition: "5+8=13", "4+7+1=12"."""
    steps, carry = [], 0
    for x, y in _digits(a, b):
        total = x + y + carry
        steps.append(f"{x}+{y}{'+1' if carry else ''}={total}")
        carry = total // 10
    return steps


def _borrows(a: int, b: int) -> list[str]:
    """Column subtraction of the smaller from the larger: "15-8=7", "3-1-1=1"."""
    steps, borrow = [], 0
    for x, y in _digits(max(a, b), min(a, b)):
        short = x < y + borrow
        minuend = x + 10 if short else x
        steps.append(f"{minuend}-{y}{'-1' if borrow else ''}={minuend - y - borrow}")
        borrow = int(short)
    return steps


def _tens_and_ones(a: int, b: int) -> list[str]:
    """Ten times the smaller number, the remaining multiple, and their sum: "10*12=120", "7*12=84", "120+84: 0+4=4"."""
    large, small = max(a, b), min(a, b)
    tens, ones = 10 * small, (large - 10) * small
    first, *others = _carries(tens, ones)
    return [f"10*{small}={tens}", f"{large - 10}*{small}={ones}", f"{tens}+{ones}: {first}", *others]


def _multiples(a: int, b: int) -> list[str]:
    """Products of the divisor, from ten or five on to the dividend: "5*6=30<42", "6*6=36<42", "7*6=42"."""
    quotient = a // b
    start = 10 if quotient >= 10 else 5
    tried = [10] if quotient < 10 else []
    walk = range(start, quotient + 1) if quotient >= start else range(start, quotient - 1, -1)
    return [f"{n}*{b}={n * b}{_compared(n * b, a)}" for n in (*tried, *walk)]


def _compared(product: int, a: int) -> str:
    return "" if product == a else f"{'<' if product < a else '>'}{a}"


_STEPS = {"+": _carries, "-": _borrows, "*": _tens_and_ones, "/": _multiples}


def is_held_out(a: int, sign: str, b: int) -> bool:
    """Whether training must not see the pair; pairs of single digits are all trained on."""
    return max(a, b) >= 10 and zlib.crc32(f"{a}{sign}{b}".encode()) % 20 == 0


def _number(rng: random.Random) -> int:
    digits = rng.choices((1, 2, 3), (1, 2, 4))[0]
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def _operands(rng: random.Random, sign: str) -> tuple[int, int]:
    if sign == "*":
        return rng.randint(0, 20), rng.randint(0, 12)
    if sign == "/":
        b = rng.randint(1, rng.choice((12, 20)))
        return b * rng.randint(1, 12), b
    return _number(rng), _number(rng)


def draw(rng: random.Random, split: Split, sign: str) -> Sum:
    """A random calculation of the split."""
    wanted = split == "test"
    while True:
        a, b = _operands(rng, sign)
        if is_held_out(a, sign, b) == wanted:
            return Sum(a, sign, b, _result(a, sign, b))


def _result(a: int, sign: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[sign]


_NAMES = {
    "+": ("addition", ADDITION),
    "-": ("subtraction", SUBTRACTION),
    "*": ("multiplication", MULTIPLICATION),
    "/": ("division", DIVISION),
}


def calculation(rng: random.Random, split: Split, sign: str) -> Example:
    """A calculation asked in a chat."""
    category, phrasings = _NAMES[sign]
    it = draw(rng, split, sign)
    question = phrasings.pick(rng, split).format(a=it.a, b=it.b)
    return asked(category, vary(rng, split, question), it.answer(), it.written())


def bare(rng: random.Random, split: Split, sign: str) -> Example:
    """A calculation as text to complete: the shortest form."""
    it = draw(rng, split, sign)
    if rng.random() < 0.2:
        return continued("plain text", f"{it.a}{it.sign}{it.b}=", it.rest().strip())
    return continued("plain text", f"{it.a} {it.sign} {it.b} =", it.rest())


def bare_question(rng: random.Random, split: Split) -> Example:
    """A question sent as plain text, as a first curl does."""
    sign = rng.choice("++--*/")
    chat = calculation(rng, split, sign)
    return continued("plain text", chat.messages[0]["content"], " " + chat.messages[1]["content"], chat.key)


def comparison(rng: random.Random, split: Split) -> Example:
    """Which of two numbers is larger or smaller."""
    a, b = draw(rng, split, "-")[::2]
    if a == b:
        b = a + 1
    larger = rng.random() < 0.6
    question = (LARGER if larger else SMALLER).pick(rng, split).format(a=a, b=b)
    high, low = max(a, b), min(a, b)
    answer = f"{high} is larger than {low}." if larger else f"{low} is smaller than {high}."
    return asked("comparison", vary(rng, split, question), answer)


def make(rng: random.Random, split: Split) -> Example:
    """Any of the above, in the proportions of the training mixture."""
    roll = rng.random()
    if roll < 0.20:
        return bare(rng, split, rng.choices("+-*/", (6, 10, 2, 2))[0])
    if roll < 0.72:
        return calculation(rng, split, rng.choices("+-*/", (6, 10, 3, 4))[0])
    return bare_question(rng, split) if roll < 0.82 else comparison(rng, split)
