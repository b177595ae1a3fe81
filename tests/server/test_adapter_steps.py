"""Adapters in steps: which are on the device, what runs for them, and what happens beside a load."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adapter_folder import tensors, write
from driver import Driver, Sequence, execute_on, make_engine
from penstock_server.base.errors import AdapterInUse, AdapterRefused, ErrorCode
from penstock_server.engine.decode_graphs import Kind
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.network.layers import adapted

PROMPT = [5, 6, 7, 8, 9, 10, 11]


@pytest.fixture
def engine(saved_model: Callable[..., Any]) -> Engine:
    return make_engine(saved_model().folder, max_adapters=2, max_sequence_len=60)


@pytest.fixture
def ids(engine: Engine, tmp_path: Path) -> list[str]:
    """Four adapters of different ranks."""
    return [load(engine, tmp_path / str(rank), rank) for rank in (1, 2, 4, 9)]


def load(engine: Engine, folder: Path, rank: int) -> str:
    weights = tensors(rank, seed=rank)
    return engine.slots.adapters.load(write(folder, weights), "", "test").adapter_id


def generate(engine: Engine, *adapter_ids: str) -> list[Sequence]:
    sequences = [Sequence(PROMPT, 4, adapter_id=adapter_id) for adapter_id in adapter_ids]
    return Driver(execute_on(engine)).run(sequences)


def admit(engine: Engine, slot: int, adapter_id: str, step: int = 1) -> Any:
    admitted = [Admit(slot, PROMPT, 7, [2 * slot, 2 * slot + 1], SamplingParams(), adapter_id=adapter_id)]
    return engine.launch(Plan(1, step, admitted=admitted, spans=[Span(slot, 0, 7)])).resolve()


def test_adapters_come_and_go_without_a_trace(engine: Engine, ids: list[str]) -> None:
    alone = {name: generate(engine, name)[0] for name in ("", *ids)}
    assert len({tuple(sequence.output) for sequence in alone.values()}) == 5, "each changes the tokens"
    for names in (ids[:2], ids[2:], ["", ids[0], "", ids[3]], ids[1:3], [ids[0], "", ids[0], ids[2]]):
        for name, sequence in zip(names, generate(engine, *names), strict=True):
            assert sequence.output == alone[name].output
            assert sequence.logprobs == alone[name].logprobs, "to the last bit"


def test_the_least_recently_used_leaves_and_never_one_in_use(engine: Engine, ids: list[str]) -> None:
    assert admit(engine, 7, ids[0]).errors == []
    generate(engine, ids[1])
    generate(engine, ids[2])
    adapters = engine.slots.adapters
    assert set(adapters._numbers) == {ids[0], ids[2]}
    assert admit(engine, 6, ids[3]).errors == []
    assert set(adapters._numbers) == {ids[0], ids[3]}
    [error] = admit(engine, 5, ids[1]).errors
    assert (error.slot, error.code) == (5, ErrorCode.INVALID)
    assert "--max-loras" in error.message
    assert admit(engine, 4, ids[0]).sampled_slots == [4], "the others go on"


def test_an_adapter_that_is_not_loaded_fails_its_slot_alone(engine: Engine, ids: list[str]) -> None:
    unknown, base, known = generate(engine, "0" * 64, "", ids[0])
    assert [error.message for error in unknown.errors] == [f"adapter {'0' * 64} is not loaded"]
    assert base.output == generate(engine, "")[0].output
    assert known.output == generate(engine, ids[0])[0].output


def test_what_a_slot_uses_is_not_unloaded(engine: Engine, ids: list[str]) -> None:
    adapters = engine.slots.adapters
    admit(engine, 0, ids[0])
    with pytest.raises(AdapterInUse):
        adapters.unload(ids[0])
    engine.launch(Plan(1, 2, retired=[0]))
    adapters.unload(ids[0])
    adapters.unload(ids[0])
    assert ids[0] not in adapters._numbers
    [error] = admit(engine, 0, ids[0], 3).errors
    assert "is not loaded" in error.message
    assert all(admit(engine, slot, ids[slot]).errors == [] for slot in (1, 2)), "its place is free"


def test_a_new_stream_uses_nothing(engine: Engine, ids: list[str]) -> None:
    admit(engine, 0, ids[0])
    engine.clear()
    engine.slots.adapters.unload(ids[0])


def test_nothing_is_computed_for_adapters_where_no_row_uses_one(
    saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With such heads, decode steps are recorded.
    engine = make_engine(saved_model(head_dim=16, num_attention_heads=9, num_key_value_heads=3).folder)
    calls: list[int] = []
    plain: Any = vars(adapted)["add_adapters"]

    def counted(*arguments: Any) -> Any:
        calls.append(len(arguments[0]))
        return plain(*arguments)

    monkeypatch.setattr(adapted, "add_adapters", counted)
    before = generate(engine, "", "")
    adapter_id = load(engine, tmp_path, 4)
    after = generate(engine, "", "")
    assert calls == []
    assert [it.logprobs for it in after] == [it.logprobs for it in before]
    mixed = generate(engine, "", adapter_id)
    assert engine.graphs is not None
    assert {Kind(2, False), Kind(2, True)} <= engine.graphs._replays.keys()
    assert engine.graphs.sizes, "steps are recorded"
    # Four layers of three, and the head: a prompt, of which the last layer computes what is read, and a decode that is
    # recorded; what follows is replayed.
    of_prompt, of_decode = [14] * 9 + [2] * 4, [2] * 13
    assert calls == of_prompt + of_decode
    again = generate(engine, adapter_id, "")
    assert calls == of_prompt + of_decode + of_prompt
    assert [again[1].logprobs, again[0].logprobs] == [it.logprobs for it in mixed]
    assert mixed[0].logprobs == before[0].logprobs
    assert mixed[1].logprobs != before[0].logprobs


def test_a_load_that_fails_harms_no_running_step(engine: Engine, ids: list[str], tmp_path: Path) -> None:
    expected = [sequence.output for sequence in generate(engine, "", ids[0])]
    bad = {name: weight * float("nan") for name, weight in tensors().items()}
    folders = [write(tmp_path / "bad", bad), write(tmp_path / "good", tensors(3)), tmp_path / "none"]
    stop, outcomes = threading.Event(), []

    def keep_loading() -> None:
        while not stop.is_set():
            for folder in folders:
                try:
                    adapter = engine.slots.adapters.load(folder, "", "test")
                except AdapterRefused as refused:
                    outcomes.append(str(refused))
                else:
                    engine.slots.adapters.unload(adapter.adapter_id)
                    outcomes.append("loaded")

    loader = threading.Thread(target=keep_loading)
    loader.start()
    try:
        while len(outcomes) < 6:
            assert [sequence.output for sequence in generate(engine, "", ids[0])] == expected
    finally:
        stop.set()
        loader.join()
    assert "loaded" in outcomes
    assert any("not finite" in outcome for outcome in outcomes)


def test_blocks_of_a_prefix_are_reused(engine: Engine, ids: list[str]) -> None:
    driver = Driver(execute_on(engine))
    donor = driver.run([Sequence(PROMPT * 2, 3, adapter_id=ids[0])])[0]
    again = Sequence(PROMPT * 2, 3, adapter_id=ids[0])
    driver.share_prefix(donor, again)
    assert again.computed == 12
    driver.run([again])
    assert again.output == donor.output
    assert again.logprobs == pytest.approx(donor.logprobs, abs=1e-4)
