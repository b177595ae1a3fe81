"""Tokens that must not be chosen, through the whole engine: the same whatever is mixed, preempted or replayed."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import oracle
import pytest
from driver import Driver, Sequence, execute_on, make_engine
from penstock_server.base.config import CudaConfig
from penstock_server.base.errors import SlotRefused
from penstock_server.engine.checks import check_sampling
from penstock_server.engine.sampling_params import SamplingParams
from test_parity import prompts

LENGTH = 12


def banning(*sequences: list[int], **others: Any) -> SamplingParams:
    """Parameters without these sequences."""
    ids = tuple(token for sequence in sequences for token in sequence)
    return SamplingParams(banned_ids=ids, banned_lens=tuple(map(len, sequences)), **others)


def allowing(ids: Iterable[int], vocab_size: int) -> bytes:
    mask = bytearray(-(-vocab_size // 8))
    for token in ids:
        mask[token // 8] |= 1 << token % 8
    return bytes(mask)


def expected(model: Any, prompt: list[int], excluded: Callable[[list[int]], set[int]]) -> list[int]:
    """Greedy tokens of transformers, without those that are excluded behind an output."""
    output: list[int] = []
    for _ in range(LENGTH):
        row = oracle.next_logprobs(model, prompt + output)
        row[list(excluded(output))] = -math.inf
        output.append(int(row.argmax()))
    return output


@pytest.mark.parametrize("sizes", [(), (1, 2, 4, 8)])
def test_mixed_preempted_and_padded_steps_exclude_the_same(
    saved_model: Callable[..., Any], sizes: tuple[int, ...]
) -> None:
    model = saved_model(head_dim=16)
    vocab_size = model.oracle.config.vocab_size
    plain = [oracle.greedy(model.oracle, prompt, LENGTH)[0] for prompt in prompts(3)]
    # Tokens that the model would choose: the second and third token of each output.
    pairs = [output[1:3] for output in plain]
    allowed = set(range(0, vocab_size, 2))
    kinds = [
        (banning(pairs[0], [pairs[0][1], *pairs[0]]), lambda output: _after(output, pairs[0])),
        (banning(pairs[1], plain[1][:1]), lambda output: _after(output, pairs[1]) | {plain[1][0]}),
        (
            SamplingParams(allowed_mask=allowing(allowed, vocab_size)),
            lambda output: set(range(vocab_size)) - allowed,
        ),
    ]
    answers = [
        expected(model.oracle, prompt, excluded)
        for prompt, (_, excluded) in zip(prompts(3), kinds, strict=True)
    ]
    assert all(answer != output for answer, output in zip(answers, plain, strict=True)), "the bans matter"
    for seed in (None, 1, 2):
        engine = make_engine(model.folder, cuda=CudaConfig(sizes))
        sequences = [
            Sequence(prompt, LENGTH, params) for prompt, (params, _) in zip(prompts(3), kinds, strict=True)
        ]
        others = [Sequence(prompt, LENGTH) for prompt in prompts(3)]
        Driver(execute_on(engine)).run([*sequences, *others], seed)
        assert [sequence.output for sequence in sequences] == answers
        assert [sequence.output for sequence in others] == plain, "a neighbour excludes nothing"


def _after(output: list[int], pair: list[int]) -> set[int]:
    return {pair[1]} if output[-1:] == pair[:1] else set()


def test_a_slot_without_any_token_left_fails_alone(saved_model: Callable[..., Any]) -> None:
    model = saved_model()
    vocab_size = model.oracle.config.vocab_size
    stuck = banning([5, 5], allowed_mask=allowing([5], vocab_size))
    sequences = [Sequence([1, 2], 4, stuck), Sequence([1, 2], 4)]
    Driver(execute_on(make_engine(model.folder))).run(sequences)
    assert sequences[0].output == [5]
    assert [error.message for error in sequences[0].errors] == [
        "no token is left that may be chosen: the others are banned or not allowed"
    ]
    assert sequences[1].output == oracle.greedy(model.oracle, [1, 2], 4)[0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (banning([3, 61]), "banned id 61 is not below 61"),
        (SamplingParams(banned_ids=(1,), banned_lens=(2,)), "banned_lens"),
        (SamplingParams(banned_ids=(1,), banned_lens=(1, 0)), "banned_lens"),
        (SamplingParams(allowed_mask=b"\x01"), "allowed_mask has 1 bytes, not 8"),
    ],
)
def test_exclusions_that_address_no_token_are_refused(params: SamplingParams, message: str) -> None:
    with pytest.raises(SlotRefused, match=message):
        check_sampling(params, 61)


def test_prompt_tokens_come_with_their_rank(saved_model: Callable[..., Any]) -> None:
    model = saved_model()
    sequence = Sequence([7, 3, 9, 100, 2], 1, SamplingParams(prompt_logprobs=True))
    outcomes: list[Any] = []
    engine = make_engine(model.folder)

    def execute(plan: Any) -> Any:
        outcomes.append(execute_on(engine)(plan))
        return outcomes[-1]

    Driver(execute).run([sequence])
    ranks = [rank for outcome in outcomes for found in outcome.prompt_logprobs for rank in found.ranks]
    rows = [oracle.next_logprobs(model.oracle, sequence.prompt[:place]) for place in range(1, 5)]
    tokens = sequence.prompt[1:]
    assert ranks == [int((row > row[token]).sum()) + 1 for row, token in zip(rows, tokens, strict=True)]
