"""Steps of decodes by arrays: the tokens and bits of the way that goes row by row, whatever some rows ask for."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from driver import make_engine
from penstock_kernels import DrawParams, apply_bitmask, draw, token_logprobs
from penstock_kernels.base.slot_columns import SlotColumn, SlotKind
from penstock_kernels.native import choose as native
from penstock_kernels.native.stage import Stager
from penstock_server.engine.engine import Engine
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Admit, Appends, Grammar, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from sampler_rows import random_params

PLAIN = (SamplingParams(), SamplingParams(temperature=0.9, top_k=30, top_p=0.8, seed=5))
DIGITS = Grammar("regex", "[0-9]+")
NUM_SLOTS, PROMPT_LEN, NUM_STEPS = 8, 3, 6


@pytest.fixture
def engine(saved_model: Callable[..., Any]) -> Engine:
    return make_engine(saved_model().folder, num_slots=NUM_SLOTS, num_blocks=8 * NUM_SLOTS)


def admits(rng: random.Random, vocab_size: int) -> list[Admit]:
    """Plain rows, and some with any parameters; one may have a grammar."""
    found = []
    for slot in range(NUM_SLOTS):
        params = rng.choice([*PLAIN, replace(random_params(rng), allowed_mask=b"", seed=slot)])
        grammar = DIGITS if slot == 3 and rng.random() < 0.7 else None
        blocks = list(range(8 * slot, 8 * slot + 8))
        prompt = [rng.randrange(5, vocab_size) for _ in range(PROMPT_LEN)]
        found.append(Admit(slot, prompt, PROMPT_LEN, blocks, params, grammar))
    return found


def outcomes(engine: Engine, admitted: list[Admit]) -> list[Outcome]:
    engine.clear()
    slots = range(NUM_SLOTS)
    found = [
        engine.launch(
            Plan(1, 1, admitted=admitted, spans=[Span(slot, 0, PROMPT_LEN) for slot in slots])
        ).resolve()
    ]
    for step in range(NUM_STEPS):
        order = [(slot + step) % NUM_SLOTS for slot in slots]
        spans = [Span(slot, PROMPT_LEN + step, 1) for slot in order]
        found.append(engine.launch(Plan(1, 2 + step, spans=spans)).resolve())
    return found


def shown(outcome: Outcome) -> list[Any]:
    tokens = outcome.sampled_slots, outcome.sampled_ids, outcome.sampled_logprobs
    return [*tokens, outcome.top_tokens, sorted(map(str, outcome.errors)), outcome.late_slots]


@pytest.mark.parametrize("seed", range(8))
def test_some_rows_of_a_step_may_ask_for_anything(
    engine: Engine, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.slots.grammars.is_patient = True
    admitted = admits(random.Random(seed), 61)
    taken: list[list[int]] = []
    stage = engine.staging.stage_decodes

    def recorded(decodes: Any, *rest: Any) -> Any:
        taken.append(decodes.apart)
        return stage(decodes, *rest)

    monkeypatch.setattr(engine.staging, "stage_decodes", recorded)
    by_arrays = outcomes(engine, admitted)
    assert len(taken) == NUM_STEPS
    assert any(taken), "some rows were sampled apart"
    monkeypatch.setattr(engine.slots, "decodes", lambda *_: None)
    for found, expected in zip(by_arrays, outcomes(engine, admitted), strict=True):
        assert shown(found) == shown(expected)


def test_a_row_that_fails_takes_none_with_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row apart whose grammar cannot go on, and a plain one whose logits are not finite."""
    engine.slots.grammars.is_patient = True
    params = [PLAIN[0], SamplingParams(repetition_penalty=1.2), PLAIN[1], PLAIN[0]]
    grammars = [None, None, None, Grammar("regex", "(")]
    admitted = [
        Admit(slot, [5, 6, 7], 3, [2 * slot, 2 * slot + 1], params[slot], grammars[slot]) for slot in range(4)
    ]
    spans = [Span(slot, 0, 3) for slot in range(4)]
    first = engine.launch(Plan(1, 1, admitted=admitted, spans=spans)).resolve()
    assert [error.slot for error in first.errors] == [3]
    logits = engine.model.logits

    def spoiled(*given: Any) -> torch.Tensor:
        found = logits(*given)
        found[2, 0] = torch.nan
        return found

    monkeypatch.setattr(engine.graphs, "sizes", [])
    monkeypatch.setattr(engine.model, "logits", spoiled)
    outcome = engine.launch(Plan(1, 2, spans=[Span(slot, 3, 1) for slot in range(4)])).resolve()
    assert sorted((error.slot, error.code.value) for error in outcome.errors) == [
        (2, "not_finite"),
        (3, "grammar"),
    ]
    assert outcome.sampled_slots == [0, 1]


TABLE_ROWS = 5


def table(rng: random.Random) -> Any:
    numbers = np.zeros((TABLE_ROWS, len(SlotColumn)), np.int64)
    for slot in range(TABLE_ROWS):
        length = rng.randint(1, 12)
        numbers[slot, [SlotColumn.LENGTH, SlotColumn.PROMPT_LEN]] = length, rng.randint(1, length)
        numbers[slot, SlotColumn.NUM_BLOCKS] = rng.choice([-(-length // 4), 1])
        numbers[slot, SlotColumn.KIND] = rng.choice([*SlotKind, SlotKind.PLAIN, SlotKind.PLAIN])
        numbers[slot, SlotColumn.FEATURES] = rng.randint(0, 15)
        numbers[slot, SlotColumn.COMPUTED] = length - rng.choice([1, 1, 2])
    return numbers


def are_decodes(spans: list[tuple[int, int, int]], numbers: Any, is_gapless: bool) -> bool:
    slots = [slot for slot, *_ in spans]
    if len(set(slots)) < len(slots) or not all(0 <= slot < TABLE_ROWS for slot in slots):
        return False
    for slot, start, length in spans:
        state = {column.name: int(numbers[slot, column]) for column in SlotColumn}
        fits = start < 4 * state["NUM_BLOCKS"] and state["LENGTH"] < 11
        follows = not is_gapless or start == state["COMPUTED"]
        is_last = length == 1 and start == state["LENGTH"] - 1
        if not (fits and follows and is_last and state["KIND"] != SlotKind.OTHER):
            return False
    return any(numbers[slot, SlotColumn.KIND] in (SlotKind.MASKED, SlotKind.PLAIN) for slot in slots)


@pytest.mark.parametrize("is_gapless", [False, True])
def test_only_valid_decodes_are_staged(is_gapless: bool) -> None:
    rng, num_staged = random.Random(1), 0
    for _ in range(2000):
        numbers = table(rng)
        stager = Stager(numbers, block_size=4, max_len=11, spare=99, is_gapless=is_gapless)
        for _ in range(2):
            slots = rng.sample(range(TABLE_ROWS), rng.randint(1, 3))
            spans = [(slot, int(numbers[slot, SlotColumn.LENGTH]) - 1, 1) for slot in slots]
            if rng.random() < 0.3:
                spans[0] = (rng.choice([-1, 0, 1, TABLE_ROWS]), rng.randint(0, 12), rng.choice([0, 1, 2]))
            before, count = numbers.copy(), len(spans)
            expected = are_decodes(spans, numbers, is_gapless)
            staged = stager.stage(np.array(spans, np.int64).T, count + 1)
            assert (staged is not None) == expected, (spans, numbers)
            assert (numbers[:, : SlotColumn.SEEN] == before[:, : SlotColumn.SEEN]).all()
            if staged is None:
                continue
            num_staged += 1
            slots = [slot for slot, *_ in spans]
            rows, columns = before[slots], staged.numbers[2 * (count + 1) :][: 4 * count].reshape(4, count)
            assert staged.numbers[: count + 1].tolist() == [*slots, 99]
            assert staged.numbers[count + 1 : 2 * count + 2].tolist() == [*(rows[:, 0] - 1), 0]
            assert columns.tolist() == [list(range(count)), slots, *rows[:, :2].T.tolist()]
            kinds = rows[:, SlotColumn.KIND]
            assert staged.apart == np.flatnonzero(kinds != SlotKind.PLAIN).tolist()
            plain = rows[kinds == SlotKind.PLAIN, SlotColumn.FEATURES]
            assert staged.features == np.bitwise_or.reduce(plain)
    assert num_staged > 200


@pytest.mark.parametrize("is_gapless", [False, True])
def test_drafts_are_rows_behind_those_of_their_spans(is_gapless: bool) -> None:
    """Where each fits and its slot is plain."""
    rng, num_staged = random.Random(2), 0
    for _ in range(2000):
        numbers = table(rng)
        stager = Stager(numbers, block_size=4, max_len=11, spare=99, is_gapless=is_gapless)
        slots = rng.sample(range(TABLE_ROWS), rng.randint(1, 3))
        spans = [(slot, int(numbers[slot, SlotColumn.LENGTH]) - 1, 1) for slot in slots]
        drafts = [rng.choice([0, 0, 1, 2, 3]) for _ in slots]
        expected = are_decodes(spans, numbers, is_gapless)
        for (slot, start, _), number in zip(spans, drafts, strict=True):
            state = {column.name: int(numbers[slot, column]) for column in SlotColumn}
            fits = start + number < 4 * state["NUM_BLOCKS"] and state["LENGTH"] + number < 11
            expected = expected and fits and (not number or state["KIND"] == SlotKind.PLAIN)
        count = len(slots) + sum(drafts)
        staged = stager.stage(np.array(spans, np.int64).T, count + 1, np.array(drafts, np.int64))
        assert (staged is not None) == expected, (spans, drafts, numbers)
        if staged is None:
            continue
        num_staged += 1
        rows = [
            (slot, start + place)
            for (slot, start, _), number in zip(spans, drafts, strict=True)
            for place in range(number + 1)
        ]
        padded = staged.numbers[: 2 * (count + 1)].reshape(2, count + 1).T
        assert [tuple(row) for row in padded.tolist()] == [*rows, (99, 0)]
        columns = staged.numbers[2 * (count + 1) :][: 4 * count].reshape(4, count).T
        prompt_lens = numbers[:, SlotColumn.PROMPT_LEN]
        assert columns.tolist() == [
            [row, slot, position + 1, prompt_lens[slot]] for row, (slot, position) in enumerate(rows)
        ]
    assert num_staged > 100


def test_blocks_are_appended_as_the_slots_would_one_by_one(engine: Engine) -> None:
    """Random appends, many of which nobody may make: all of a plan, or as if each came alone."""
    rng, num_whole = random.Random(3), 0
    limits = engine.slots.limits
    for _ in range(400):
        engine.clear()
        for slot in range(5):
            engine.slots.apply(Plan(1, 1, admitted=[Admit(slot, [5], 1, [slot], SamplingParams())]))
        slots = [rng.choice([0, 1, 2, 3, 4, 4, 7, NUM_SLOTS]) for _ in range(rng.randint(1, 4))]
        counts = [rng.choice([0, 1, 1, 2, limits.max_blocks]) for _ in slots]
        blocks = [
            rng.choice([1, 2, 3, limits.num_blocks - rng.choice([0, 1, 1])]) for _ in range(sum(counts))
        ]
        appends = Appends(*(np.array(column, np.int64) for column in (slots, counts, blocks)))
        held = {slot: state.num_blocks for slot, state in engine.slots.states.items()}
        before = engine.slots.rows.block_table.clone()
        if engine.slots._table.append_here(appends, engine.slots.rows.block_table):
            num_whole += 1
            for append in appends:
                first, count = held[append.slot], len(append.block_ids)
                before[append.slot, first : first + count] = torch.tensor(append.block_ids, dtype=torch.int32)
                held[append.slot] += count
            assert max(slots) < 5
            assert len(set(slots)) == len(slots)
        else:
            assert engine.slots._table.append(appends) is None, "it may not be done either way"
        assert torch.equal(engine.slots.rows.block_table, before)
        assert held == {slot: state.num_blocks for slot, state in engine.slots.states.items()}
    assert num_whole > 50


@pytest.mark.parametrize("draws", [False, True])
def test_rows_are_chosen_as_the_ops_choose_them(draws: bool) -> None:
    torch.manual_seed(0)
    num_rows, num_slots, vocab_size = 5, 9, 67
    logits = 3 * torch.randn(num_rows, vocab_size + 3)[:, :vocab_size]
    logits[3, 5] = torch.nan
    slots, lengths = torch.tensor([7, 0, 2, 8, 3]), torch.tensor([4, 1, 9, 2, 6])
    params = torch.rand(num_slots, 12)[:, :10]
    params[:, 0] *= draws
    params[2, 0] = 0
    params[:, 1] = torch.tensor([0, 3, 1e6, 20, 5, 6, 7, 2, 9])
    params[:, 4] = 0.3 + 0.7 * params[:, 4]
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_slots, 2))[:, 0]
    tokens = torch.full((num_slots, 12), -1, dtype=torch.int32)[:, :10]
    kept = native.SlotRows(tokens, params, seeds)
    found = native.choose(logits, slots, lengths, kept, draws)
    temperature, top_k, top_p, min_p, typical_p = params[slots, :5].T.contiguous()
    given = DrawParams(
        *(temperature, top_k.clamp(max=vocab_size).int(), top_p, min_p, typical_p, seeds[slots], lengths)
    )
    expected = token_logprobs(logits, draw(logits, given) if draws else None)
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.finite, expected.finite)
    torch.testing.assert_close(found.logprobs, expected.chosen, atol=0, rtol=0, equal_nan=True)
    written = tokens != -1
    assert written.sum() == num_rows
    assert tokens[slots, lengths].tolist() == found.token_ids.tolist()


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("num_words", [2, 3])
def test_masked_rows_are_chosen_among_the_others_as_the_ops_choose_them(draws: bool, num_words: int) -> None:
    torch.manual_seed(1)
    num_rows, num_slots, vocab_size = 6, 9, 90
    logits = 3 * torch.randn(num_rows, vocab_size + 3)[:, :vocab_size]
    logits[4, 5] = torch.nan
    slots, lengths = torch.tensor([7, 0, 2, 8, 3, 1]), torch.tensor([4, 1, 9, 2, 6, 3])
    params = torch.rand(num_slots, 10)
    # Rows with a mask draw by their own temperature, whatever the others do.
    params[[7, 8, 1], 0] *= draws
    params[:, 1] = torch.tensor([0, 3, 1e6, 20, 5, 6, 7, 2, 9])
    params[:, 4] = 0.3 + 0.7 * params[:, 4]
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_slots,))
    tokens = torch.full((num_slots, 10), -1, dtype=torch.int32)
    # Some words allow all, some nothing; the last row is left no token.
    bits = torch.randint(-(2**31), 2**31 - 1, (3, num_words), dtype=torch.int32)
    bits[0, 0], bits[1, 1], bits[2] = -1, 0, 0
    masks = native.Masks.of(torch.tensor([4, 1, 2]), bits)
    before = logits.clone()
    found = native.choose(logits, slots, lengths, native.SlotRows(tokens, params, seeds), draws, masks)
    torch.testing.assert_close(logits, before, atol=0, rtol=0, equal_nan=True)
    scores = logits.clone()
    apply_bitmask(scores, masks.rows, bits)
    temperature, top_k, top_p, min_p, typical_p = params[slots, :5].T.contiguous()
    given = DrawParams(
        *(temperature, top_k.clamp(max=vocab_size).int(), top_p, min_p, typical_p, seeds[slots], lengths)
    )
    expected = token_logprobs(logits, draw(scores, given))
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.finite.tolist() == expected.finite.tolist()
    torch.testing.assert_close(found.logprobs, expected.chosen, atol=0, rtol=0, equal_nan=True)
    assert masks.possible.tolist() == (scores[masks.rows].amax(-1) > -torch.inf).tolist()
    assert tokens[slots, lengths].tolist() == found.token_ids.tolist()
