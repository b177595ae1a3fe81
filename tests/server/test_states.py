"""Layers with states: slots used again, prompts in any pieces, snapshots, what is refused, what memory is counted."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import oracle
import pytest
import tiny_model
from driver import Driver, Execute, Sequence, execute_on, make_engine
from family_models import CASES
from penstock_server.base.errors import InvalidPlan, StartError
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.load import sizes
from penstock_server.network.kv_cache import block_bytes
from penstock_server.network.states import States, state_bytes
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.conversion import plan_from_pb
from shard_client import plan_fields
from thread_ranks import engines, execute_on_all

# One of each kind; the last has no attention at all.
NAMES = ("qwen3_5_text", "falcon_h1", "lfm2", "mamba2", "kimi_linear-in-c")
NUM_NEW = 3
Saved = tuple[Path, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    """The folder of a model, and the model itself; made once."""
    made: dict[str, Saved] = {}

    def make(name: str) -> Saved:
        if name not in made:
            folder, options = tmp_path_factory.mktemp(name), dict(CASES[name])
            made[name] = folder, tiny_model.save(folder, tiny_model.TinyModel(options.pop("family"), options))
        return made[name]

    return make


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 301) for _ in range(length)]


def check(sequence: Sequence, model: Any) -> None:
    """Tokens and log probabilities are those of transformers."""
    tokens, logprobs = oracle.greedy(model, sequence.prompt, sequence.max_new)
    assert (sequence.errors, sequence.output) == ([], tokens)
    assert sequence.logprobs == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_slot_that_is_used_again_begins_anew(name: str, saved: Callable[[str], Saved]) -> None:
    folder, model = saved(name)
    engine = make_engine(folder, max_sequence_len=100, is_poisoned=True)
    driver = Driver(execute_on(engine), num_slots=1)
    # One is cancelled inside its prompt, one ends; the next ones have one token, fewer than the convolution, and more.
    driver.send(Plan(0, 0, admitted=[admit(prompt(40, 1))], spans=[Span(0, 0, 23)]))
    driver.send(Plan(0, 0, retired=[0]))
    for length in (20, 1, 2):
        check(driver.run([Sequence(prompt(length, length), NUM_NEW)])[0], model)


def admit(tokens: list[int]) -> Admit:
    return Admit(0, tokens, len(tokens), list(range(20)), SamplingParams())


@pytest.mark.parametrize("pieces", [(1, 1, 1, 30), (3, 64, 1, 2), (63, 1, 6)])
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_may_come_in_any_pieces(
    name: str, pieces: tuple[int, ...], saved: Callable[[str], Saved]
) -> None:
    folder, model = saved(name)
    engine = make_engine(folder, max_sequence_len=100, is_poisoned=True)
    tokens, start = prompt(sum(pieces), 2), 0
    found: dict[int, float] = {}
    params = SamplingParams(prompt_logprobs=True)
    for step, length in enumerate(pieces, start=1):
        admitted = [Admit(5, tokens, len(tokens), list(range(25)), params)] if step == 1 else []
        outcome = engine.launch(Plan(1, step, admitted=admitted, spans=[Span(5, start, length)])).resolve()
        start += length
        for rows in outcome.prompt_logprobs:
            found |= dict(enumerate(rows.logprobs, rows.start))
    assert [found[position] for position in range(1, len(tokens))] == pytest.approx(
        oracle.prompt_logprobs(model, tokens), abs=1e-3
    )
    assert outcome.sampled_ids == oracle.greedy(model, tokens, 1)[0]


def test_spans_that_do_not_follow_each_other_are_refused(saved: Callable[[str], Saved]) -> None:
    engine = make_engine(saved("lfm2")[0], max_sequence_len=100)

    def errors(*plans: Plan) -> list[str]:
        engine.clear()
        return [error.message for plan in plans for error in engine.launch(plan).resolve().errors]

    tokens = prompt(12)
    reused = Plan(1, 1, admitted=[admit(tokens)], spans=[Span(0, 8, 4)])
    assert errors(reused) == ["span 8..12 does not follow the slot's state, which is that of 0 tokens"]
    begun = Plan(1, 1, admitted=[admit(tokens)], spans=[Span(0, 0, 12)])
    again = "span 11..12 does not follow the slot's state, which is that of 12 tokens"
    assert errors(begun, Plan(1, 2, spans=[Span(0, 11, 1)])) == [again]
    assert errors(begun, Plan(1, 2, spans=[Span(0, 12, 1)]), Plan(1, 3, spans=[Span(0, 13, 1)])) == []


class Snapshots:
    """One sequence after another on a shard, each in a slot of its own, and with the states of those before."""

    def __init__(self, execute: Execute) -> None:
        self.execute = execute
        self.step = 0

    def run(
        self, slot: int, tokens: list[int], ends: list[int], begin: int | None = None, start: int = 0
    ) -> list[int]:
        """Spans up to these ends, the last of which are decodes; the state behind span i is kept as snapshot i.

        `begin` is a snapshot of `start` positions to begin with; their blocks are those of slot 0.
        """
        blocks = [*self._blocks(0)[: start // 4], *self._blocks(slot)[start // 4 :]]
        admit = Admit(slot, tokens, len(tokens), blocks, SamplingParams(), snapshot=begin)
        found: list[int] = []
        for number, end in enumerate(ends):
            self.step += 1
            spans = [Span(slot, start, end - start)]
            first = [admit] if number == 0 else []
            outcome = self.execute(Plan(1, self.step, admitted=first, spans=spans, snapshots={slot: number}))
            assert outcome.errors == []
            found += outcome.sampled_ids
            start = end
        return found

    @staticmethod
    def _blocks(slot: int) -> list[int]:
        return list(range(20 * slot, 20 * slot + 20))


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_slot_goes_on_from_a_snapshot(
    name: str, num_ranks: int, saved: Callable[[str], Saved], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = saved(name)
    tokens = prompt(21, 4)
    expected = oracle.greedy(model, tokens, 5)[0]
    options = {"max_sequence_len": 80, "num_blocks": 80, "is_poisoned": True}
    with engines(folder, num_ranks, monkeypatch, **options) as ranks:
        shard = Snapshots(execute_on_all(ranks))
        # Snapshot 0 is that of 16 positions, 1 of the whole prompt, 4 of a decode.
        assert shard.run(0, tokens, [16, 21, 22, 23, 24]) == expected[:4]
        assert shard.run(1, tokens, [20, 21, 22, 23], begin=0, start=16) == expected[:3]
        # Slot 1 has overwritten the first four, and its snapshots are as good.
        other = [*tokens[:20], 7, 8]
        assert shard.run(2, other, [22], begin=0, start=20) == oracle.greedy(model, other, 1)[0]
        assert shard.run(3, tokens + expected[:4], [25], begin=4, start=24) == expected[4:5]


def test_snapshots_that_cannot_be_used_are_refused(saved: Callable[[str], Saved]) -> None:
    engine = make_engine(saved("lfm2")[0], max_sequence_len=100, num_snapshots=2)

    def errors(*plans: Plan) -> list[str]:
        return [error.message for plan in plans for error in engine.launch(plan).resolve().errors]

    tokens = prompt(12)

    def begun(snapshot: int, num_tokens: int = 12) -> Plan:
        slot = Admit(1, tokens[:num_tokens], num_tokens, list(range(20)), SamplingParams(), snapshot=snapshot)
        return Plan(1, 1, retired=[1] if 1 in engine.slots.states else [], admitted=[slot])

    assert errors(begun(2)) == ["snapshot 2 is not below num_snapshots 2"]
    assert errors(begun(1)) == ["nothing is kept as snapshot 1"]
    first = Plan(1, 1, admitted=[admit(tokens)], spans=[Span(0, 0, 8)], snapshots={0: 1})
    assert errors(first) == []
    assert errors(begun(1, 8)) == ["snapshot 1 is of 8 tokens, and the slot has 8"]
    behind = "span 9..12 does not follow the slot's state, which is that of 8 tokens"
    assert errors(begun(1), Plan(1, 2, spans=[Span(1, 9, 3)])) == [behind]
    # A span that is refused keeps nothing.
    refused = Plan(1, 3, spans=[Span(0, 9, 3)], snapshots={0: 0})
    assert len(errors(refused)) == 1
    assert errors(begun(0)) == ["nothing is kept as snapshot 0"]
    for places, reason in (({0: 2}, "a snapshot is not below"), ({0: 1, 1: 1}, "two states are to be kept")):
        with pytest.raises(InvalidPlan, match=reason):
            engine.launch(Plan(1, 4, spans=[Span(0, 8, 1)], snapshots=places))
    engine.clear()
    assert errors(begun(1)) == ["nothing is kept as snapshot 1"], "the next router knows of none"


def test_the_wire_has_snapshots() -> None:
    plan = Plan(
        1, 2, [], [replace(admit(prompt(9)), snapshot=0), admit(prompt(9))],
        spans=[Span(3, 0, 8), Span(4, 0, 8)], snapshots={4: 7},
    )  # fmt: skip
    message = pb.Plan(epoch=1, step=2, **plan_fields(plan))
    assert (list(message.snapshot_spans), list(message.snapshots)) == ([1], [7])
    read = plan_from_pb(message)
    assert ([it.snapshot for it in read.admitted], read.snapshots) == ([0, None], {4: 7})
    for numbers in ([0, 1], [2]):
        with pytest.raises(InvalidPlan, match="snapshot_spans and snapshots do not match the spans"):
            plan_from_pb(
                pb.Plan(span_slots=[0], span_starts=[0], span_lens=[1], snapshot_spans=numbers, snapshots=[1])
            )


def test_a_model_without_states_has_no_snapshots(saved_model: Callable[..., Any]) -> None:
    engine = make_engine(saved_model().folder, num_snapshots=4)
    assert engine.description.limits.num_snapshots == 0
    with_one = Admit(0, [5, 6], 2, [0], SamplingParams(), snapshot=0)
    errors = engine.launch(Plan(1, 1, admitted=[with_one])).resolve().errors
    assert [error.message for error in errors] == [
        "the model keeps no states, so a slot cannot begin with one"
    ]


def test_states_are_counted_before_the_cache(
    saved: Callable[[str], Saved], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (budget, num_slots) = saved("qwen3_5_text")[0], (2**22, 4)
    monkeypatch.setattr(sizes, "budget_bytes", lambda _world_size: budget)
    options = {"max_sequence_len": 40, "num_blocks": None, "num_slots": num_slots}
    for asked, num_snapshots in ((None, 2 * num_slots), (0, 0), (3, 3)):
        engine = make_engine(folder, num_snapshots=asked, **options)
        model, limits = engine.model, engine.description.limits
        each_state = state_bytes(model.state_shape, model.dtype)
        taken = (num_slots + 1 + num_snapshots) * each_state
        states = engine.cache.states
        assert isinstance(states, States)
        assert taken == states.conv.nbytes + states.matrices.nbytes > 0
        each = block_bytes(model.cache_shape, 4, model.dtype)
        assert limits.num_snapshots == num_snapshots
        assert limits.num_blocks == min((budget - taken) // each, num_slots * limits.max_blocks)
    slots_bytes = (num_slots + 1) * each_state
    monkeypatch.setattr(sizes, "budget_bytes", lambda _world_size: slots_bytes + 12 * each_state)
    assert make_engine(folder, **options).description.limits.num_snapshots == 3, "a quarter of what is left"
    with pytest.raises(StartError, match=r"13 snapshots take .* lower --max-snapshots"):
        make_engine(folder, num_snapshots=13, **options)
    monkeypatch.setattr(sizes, "budget_bytes", lambda _world_size: slots_bytes)
    with pytest.raises(StartError, match=r"the states of 4 slots take .* lower --max-batch-size"):
        make_engine(folder, **options)


def test_snapshots_are_counted_beside_blocks_that_were_asked_for(
    saved: Callable[[str], Saved], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, options = saved("qwen3_5_text")[0], {"max_sequence_len": 40, "num_blocks": 20, "num_slots": 4}
    model = make_engine(folder, **options).model
    each = state_bytes(model.state_shape, model.dtype)
    blocks = 20 * block_bytes(model.cache_shape, 4, model.dtype)
    monkeypatch.setattr(sizes, "free_bytes", lambda _world_size: blocks + (4 + 1 + 3) * each)
    limits = make_engine(folder, **options).description.limits
    assert (limits.num_blocks, limits.num_snapshots) == (20, 3)
    assert "snapshots lowered from 8 to 3, what is left beside --max-batch-total-tokens" in caplog.messages
    assert make_engine(folder, num_snapshots=3, **options).description.limits.num_snapshots == 3
    with pytest.raises(StartError, match=r"4 snapshots take .* --max-snapshots or --max-batch-total-tokens"):
        make_engine(folder, num_snapshots=4, **options)
    monkeypatch.setattr(sizes, "free_bytes", lambda _world_size: blocks - 1 + 5 * each)
    assert make_engine(folder, **options).description.limits.num_snapshots == 0


def test_what_is_not_possible_is_refused(saved: Callable[[str], Saved]) -> None:
    with pytest.raises(StartError, match=r"--batch-invariant: .* recurrent layers"):
        make_engine(saved("lfm2")[0], batch_invariant=True)


def test_the_router_is_told(saved: Callable[[str], Saved]) -> None:
    engine: Engine = make_engine(saved("lfm2")[0])
    assert "recurrent" in engine.description.abilities
    assert engine.slots.grammars.is_patient, "a state cannot go back by a token"
