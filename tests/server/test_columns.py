"""Plans and outcomes as columns of the endpoint in Rust: the same as the messages, whatever is in them."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from penstock_server.base.errors import ErrorCode, InvalidPlan, PenstockError
from penstock_server.engine.outcome import (
    Outcome,
    PromptLogprobs,
    SlotError,
    Timings,
    Tokens,
    TopTokens,
)
from penstock_server.engine.plan import Plan
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.conversion import Encoding, outcome_to_pb, plan_from_pb
from test_hostile_plans import plans

endpoint = pytest.importorskip("penstock_endpoint", reason="penstock-endpoint is not installed")
from penstock_server.rpc.columns import outcome_to_columns, plan_from_columns  # noqa: E402 - needs the module


def read(data: bytes) -> Plan | str:
    """A plan by its message, or why it is refused; what is no message at all is refused by gRPC."""
    try:
        return plan_from_pb(pb.Plan.FromString(data))
    except (InvalidPlan, DecodeError) as error:
        return str(error) if isinstance(error, InvalidPlan) else ""


def read_columns(data: bytes) -> Plan | str:
    """Like `read`, but by the endpoint."""
    try:
        return plan_from_columns(endpoint.Plan(data))
    except (PenstockError, ValueError) as error:
        return str(error) if isinstance(error, InvalidPlan) else ""


def shown(plan: Plan) -> list[Any]:
    return [
        *(plan.epoch, plan.step, plan.retired, repr(plan.admitted), list(plan.appended), list(plan.spans)),
        *(plan.copied_from, plan.copied_to, plan.open_drafts, plan.snapshots),
    ]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans())
def test_columns_are_read_as_the_message_is(data: bytes) -> None:
    expected, found = read(data), read_columns(data)
    if isinstance(found, Plan) and isinstance(expected, Plan):
        assert shown(found) == shown(expected)
    else:
        # If there are two reasons, either one may be reported.
        assert found == expected or "" in (found, expected)
        assert isinstance(found, str)
        assert isinstance(expected, str)


def test_the_endpoint_reads_every_field_of_a_plan() -> None:
    """A field of the protocol that it does not know would be lost."""
    fields: list[Any] = list(pb.Plan.DESCRIPTOR.fields)
    for number, known in enumerate(fields, start=2):
        plan = pb.Plan()
        if known.message_type is not None:
            plan.admitted.add(slot=number)
        elif known.is_repeated:
            getattr(plan, known.name).append(number)
        else:
            setattr(plan, known.name, number)
        read_again = endpoint.Plan(plan.SerializeToString())
        has_columns = read_again.is_more or read_again.appended or read_again.spans != b""
        assert has_columns or number in (read_again.epoch, read_again.step), known.name


ODD = Outcome(
    7,
    9,
    Tokens.of([1, 2**32 - 1], [3, 0], [-0.5, float("nan")]),
    top_tokens=[TopTokens(1, [3, 4], [-0.5, -1.0])],
    prompt_logprobs=[PromptLogprobs(1, 1, [-1.0], [[5]], [[-1.0]], [2])],
    errors=[SlotError(4, ErrorCode.GRAMMAR, "no")],
    late_slots=[6],
    num_drafted={1: 2},
    timings=Timings(1, 2, 3, 4),
)


@pytest.mark.parametrize("tells_tokens", [True, False])
@pytest.mark.parametrize("outcome", [ODD, Outcome(1, 2), Outcome(1, 2, Tokens.of([5], [6], [-1.0]))])
def test_outcomes_are_told_as_their_messages(outcome: Outcome, tells_tokens: bool) -> None:
    told = pb.Outcome.FromString(outcome_to_columns(outcome, Encoding(tells_tokens)).encoded())
    assert str(told) == str(outcome_to_pb(outcome, Encoding(tells_tokens)))


def test_a_fault_is_told_as_its_message() -> None:
    def spoil(message: pb.Outcome) -> None:
        message.sampled_checksum ^= 1

    encoding = Encoding(True, spoil)
    told = pb.Outcome.FromString(outcome_to_columns(ODD, encoding).encoded())
    assert str(told) == str(outcome_to_pb(ODD, encoding))


@given(st.lists(st.integers(), max_size=3))
def test_a_number_that_no_slot_has_is_refused(slots: list[int]) -> None:
    with suppress(OverflowError):
        numbers = np.array(slots, np.int64)
        fits = all(0 <= slot < 2**32 for slot in slots)
        given_columns = (numbers, numbers, np.zeros(len(slots), np.float32))
        if fits:
            endpoint.Outcome(1, 1, *given_columns, True, Timings(), b"")
            return
        with pytest.raises(ValueError, match="out of range"):
            endpoint.Outcome(1, 1, *given_columns, True, Timings(), b"")
