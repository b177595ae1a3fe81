"""A poisoned cache shows what is read without having been written; a sound load does not notice it."""

from collections.abc import Callable

from conftest import SavedModel
from driver import Driver, Sequence, execute_on, make_engine
from penstock_server.base.errors import ErrorCode
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams


def test_reading_what_was_never_written_is_noticed(saved_model: Callable[..., SavedModel]) -> None:
    engine = make_engine(saved_model("llama").folder, is_poisoned=True)
    whole = Admit(0, list(range(8)), 8, [1, 2, 3], SamplingParams())
    skipped = Admit(1, list(range(8)), 8, [4, 5, 6], SamplingParams())
    plan = Plan(1, 1, admitted=[whole, skipped], spans=[Span(0, 0, 8), Span(1, 4, 4)])
    outcome = engine.launch(plan).resolve()
    assert outcome.sampled_slots == [0]
    assert [(error.slot, error.code) for error in outcome.errors] == [(1, ErrorCode.NOT_FINITE)]


def test_a_poisoned_cache_changes_no_token(saved_model: Callable[..., SavedModel]) -> None:
    folder, outputs = saved_model("llama").folder, []
    for is_poisoned in (False, True):
        sequences = [Sequence([7 * n + k for k in range(5 + 3 * n)], 12) for n in range(6)]
        Driver(execute_on(make_engine(folder, is_poisoned=is_poisoned))).run(sequences, seed=3)
        outputs.append([sequence.output for sequence in sequences])
    assert outputs[0] == outputs[1]
    assert all(len(output) == 12 for output in outputs[0])
