"""Random requests in random company, decided by seeds, and what each must be answered. Sends nothing.

A trace is one request with its surroundings: when it arrives, when its client leaves, and the other traces of its
batch, with some of which it shares the beginning of its prompt.
"""

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from penstock_kernels import gumbel

BATCH_LEN = 32
BLOCK_SIZE = 16
STEP_TOKENS = 40
MAX_LEN = 256
MAX_BEST_OF = 3
# Who waits that long never meant to leave.
PATIENT_S = 120.0
# One token is one character, so that prompts are as long as they look and every token is known by its text.
EOS = "</s>"
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
VOCABULARY = {token: index for index, token in enumerate([EOS, *ALPHABET])}

_EDGES = (BLOCK_SIZE, 2 * BLOCK_SIZE, STEP_TOKENS, 2 * STEP_TOKENS)
_PROMPT_LENS = (1, *(edge + step for edge in _EDGES for step in (-1, 0, 1)), 120)
# The fields of a request that concern other requests at the same time, or how its answer is read.
_COMPANY = {"n", "best_of", "stream", "stream_options", "priority", "cache_salt", "cache_ttl_ms"}
# Two tokens may change places when their scores are closer than sums in another order may move them.
_TIE = 1e-4
_LOGPROB_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Trace:
    """One request, and how its client behaves."""

    seed: int
    body: dict[str, Any]
    arrives_s: float
    # The client leaves when it has so many events, or when it has to wait longer for a byte.
    leaves_after: int | None = None
    patience_s: float = PATIENT_S

    @property
    def prompt(self) -> str:
        return str(self.body["prompt"])

    @property
    def num_sequences(self) -> int:
        return int(self.body.get("best_of") or self.body.get("n") or 1)

    @property
    def need_tokens(self) -> int:
        """Token positions of KV cache if it ran to its end without sharing a block."""
        each = len(self.prompt) + int(self.body["max_tokens"])
        return self.num_sequences * math.ceil(each / BLOCK_SIZE) * BLOCK_SIZE

    def alone(self) -> list[dict[str, Any]]:
        """The requests whose answers it must give, one per sequence. Who asks must wait for each, on an idle server."""
        body = {name: value for name, value in self.body.items() if name not in _COMPANY}
        return [
            {**body, "logprobs": 0, "seed": self.body["seed"] + number}
            for number in range(self.num_sequences)
        ]


def make_trace(seed: int) -> Trace:
    """The trace of this seed."""
    dice, batch = Random(f"trace {seed}"), Random(f"batch {seed // BATCH_LEN}")
    stems = [_letters(batch, max(_PROMPT_LENS)) for _ in range(3)]
    is_long = dice.random() < _share_of_long(seed)
    body = {"prompt": _prompt(dice, stems, is_long), **_length(dice, is_long), **_sampling(dice)}
    body |= _choices(dice, body["max_tokens"]) | _company(dice) | _bias(Random(f"bias {seed}"))
    if dice.random() < 0.75:
        body["logprobs"] = dice.randrange(4)
        body["echo"] = dice.random() < 0.1
    if "best_of" not in body:
        body["stream"] = dice.random() < 0.7
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True}
    return Trace(seed, body, dice.uniform(0, 0.05), **_leaving(dice))


def _letters(dice: Random, count: int) -> str:
    return "".join(dice.choices(ALPHABET, k=count))


def _prompt(dice: Random, stems: list[str], is_long: bool) -> str:
    """Often the beginning of a prompt that others have, too, or all of it; its length is often on some edge.

    Before a long output it is short, so that many are let in and grow out of the pool together.
    """
    length = dice.choice(_PROMPT_LENS[:7] if is_long else _PROMPT_LENS)
    shared = min(length, dice.choice((0, BLOCK_SIZE, 2 * BLOCK_SIZE, 3 * BLOCK_SIZE + 5, max(_PROMPT_LENS))))
    return dice.choice(stems)[:shared] + _letters(dice, length - shared)


def _share_of_long(seed: int) -> float:
    """Every third batch is mostly long outputs: the memory that the scheduler lets in is for the short ones before."""
    return 0.8 if seed // BATCH_LEN % 3 == 2 else 0.05


def _length(dice: Random, is_long: bool) -> dict[str, Any]:
    max_tokens = dice.randint(40, 90) if is_long else dice.randint(1, 12)
    length: dict[str, Any] = {"max_tokens": max_tokens}
    if is_long or dice.random() < 0.5:
        length["ignore_eos"] = True
    elif dice.random() < 0.3:
        length["min_tokens"] = dice.randint(1, max_tokens)
    if dice.random() < 0.3:
        length["stop"] = [_letters(dice, dice.randint(1, 2)) for _ in range(dice.randint(1, 4))]
    return length


def _sampling(dice: Random) -> dict[str, Any]:
    temperature = dice.choice((0, 0, 0.7, 1.0, 1.5))
    sampling: dict[str, Any] = {"temperature": temperature, "seed": dice.randrange(2**40)}
    if dice.random() < 0.2:
        sampling |= dice.choice(({"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.05}))
    if dice.random() < 0.2:
        # These count what was generated: recomputing a sequence must not make its output a part of its prompt.
        name = dice.choice(("frequency_penalty", "presence_penalty", "repetition_penalty"))
        sampling[name] = 1.3
    return sampling


def _bias(dice: Random) -> dict[str, Any]:
    """Some can say two letters only: what they said before is often what they say next, and drafts of it are right."""
    if dice.random() < 0.8:
        return {}
    return {"logit_bias": {str(VOCABULARY[letter]): 50 for letter in dice.sample(ALPHABET, 2)}}


def _choices(dice: Random, max_tokens: int) -> dict[str, Any]:
    if dice.random() < 0.85:
        return {}
    n = dice.randint(1, MAX_BEST_OF)
    if n == MAX_BEST_OF or dice.random() < 0.5:
        return {"n": n}
    # All have the same length and none has a token that is not shown: their mean log probabilities are known.
    fixed = {"ignore_eos": False, "min_tokens": max_tokens, "stop": None, "temperature": 1.0}
    return {"n": n, "best_of": MAX_BEST_OF, **fixed}


def _company(dice: Random) -> dict[str, Any]:
    wishes: dict[str, Any] = {}
    if dice.random() < 0.3:
        wishes["priority"] = dice.randint(-2, 2)
    if dice.random() < 0.2:
        wishes["cache_salt"] = dice.choice("ab")
    if dice.random() < 0.2:
        wishes["cache_ttl_ms"] = dice.randint(1, 2000)
    return wishes


def _leaving(dice: Random) -> dict[str, Any]:
    return dice.choice((
        {}, {}, {}, {}, {}, {},
        {"leaves_after": dice.choice((0, 1, 2, 3, 5, 8, 20))},
        {"patience_s": 10 ** dice.uniform(-3, -0.3)},
    ))  # fmt: skip


@dataclass
class Choice:
    """The results of one choice so far."""

    text: str = ""
    # Only if they were asked for.
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    finish: str | None = None

    def add(self, part: dict[str, Any]) -> None:
        """A chunk of a stream, or the whole choice."""
        self.text += part["text"]
        self.finish = part["finish_reason"] or self.finish
        if part["logprobs"]:
            self.tokens += part["logprobs"]["tokens"]
            self.logprobs += part["logprobs"]["token_logprobs"]

    def mean_logprob(self) -> float:
        known = [logprob for logprob in self.logprobs if logprob is not None]
        return sum(known) / max(1, len(known))


@dataclass
class Comparison:
    """The results of all comparisons so far, over many traces."""

    worst_logprob: float = 0.0
    ties: int = 0

    def compare(self, trace: Trace, got: list[Choice], alone: list[Choice]) -> None:
        """Fails unless every choice is what it would be alone, or the beginning of it when the client left."""
        seeds = range(trace.body["seed"], trace.body["seed"] + len(alone))
        expected = list(zip(seeds, alone, strict=True))
        if "best_of" in trace.body:
            expected.sort(key=lambda pair: -_output_logprob(trace, pair[1]))
        for choice, (seed, other) in zip(got, expected, strict=False):
            if not self._is_tie(trace, seed, choice, other):
                self._compare(choice, other)

    def _compare(self, got: Choice, alone: Choice) -> None:
        cut = got.finish is None
        assert alone.text.startswith(got.text) if cut else alone.text == got.text, (got.text, alone.text)
        assert got.finish in (None, alone.finish)
        if not got.tokens:
            return
        assert alone.tokens[: len(got.tokens) if cut else None] == got.tokens
        for one, other in zip(got.logprobs, alone.logprobs, strict=False):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                self.worst_logprob = max(self.worst_logprob, abs(one - other))
                assert abs(one - other) < _LOGPROB_TOLERANCE

    def _is_tie(self, trace: Trace, seed: int, got: Choice, alone: Choice) -> bool:
        """Whether they part at a token where two had the same score, but for rounding."""
        pairs = zip(got.tokens, alone.tokens, strict=False)
        first = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
        if first is None:
            return False
        scores = [_score(trace, seed, first, choice) for choice in (got, alone)]
        is_tie = abs(scores[0] - scores[1]) < _TIE
        self.ties += is_tie
        return is_tie


def _output_logprob(trace: Trace, choice: Choice) -> float:
    """The mean over its output, by which the best is chosen."""
    start = len(trace.prompt) if trace.body.get("echo") else 0
    return Choice(logprobs=choice.logprobs[start:]).mean_logprob()


def _score(trace: Trace, seed: int, index: int, choice: Choice) -> float:
    """The score that the sampler compared: log probability over temperature, and noise."""
    position = index + (0 if trace.body.get("echo") else len(trace.prompt))
    token, temperature = VOCABULARY[choice.tokens[index]], float(trace.body["temperature"])
    bias = float(trace.body.get("logit_bias", {}).get(str(token), 0))
    score = (choice.logprobs[index] or 0.0) + bias
    if temperature == 0:
        return score
    noise = gumbel(torch.tensor([seed]), torch.tensor([position]), len(VOCABULARY))
    return score / temperature + float(noise[0, token])


def make_batch(first: int) -> list[Trace]:
    """The traces that run together, from `first` on."""
    return [make_trace(seed) for seed in range(first, first + BATCH_LEN)]
