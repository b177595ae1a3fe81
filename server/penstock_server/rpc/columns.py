"""Plans and outcomes as the endpoint in Rust has them: columns of numbers, of which no row is an object here.

What is rare stays a message: admissions, and what an outcome has beside its tokens.
"""

from collections.abc import Sequence

import numpy as np
import penstock_endpoint
from google.protobuf.message import DecodeError

from penstock_server.base.errors import InvalidPlan, PenstockError
from penstock_server.engine.outcome import NO_TOKENS, Outcome, Timings
from penstock_server.engine.plan import Admit, Numbers, Plan, Spans
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.conversion import (
    KEPT,
    OPEN,
    Encoding,
    admit_from_pb,
    appends_of,
    by_slot,
    outcome_to_pb,
    rest_to_pb,
)


def plan_from_columns(plan: penstock_endpoint.Plan) -> Plan:
    """Raises InvalidPlan where parallel columns do not match: that error belongs to no slot."""
    step, spans, appended = plan.step, plan.spans, plan.appended
    if spans is None:
        raise InvalidPlan(f"step {step}: span_slots, span_starts and span_lens differ in length")
    numbers = _numbers(spans).reshape(3, -1)
    found = Plan(
        plan.epoch,
        step,
        appended=() if appended is None else appends_of(step, *map(_numbers, appended)),
        spans=Spans(numbers),
    )
    return found if not plan.is_more else _with_more(found, plan, numbers[0].tolist())


def outcome_to_columns(outcome: Outcome, encoding: Encoding) -> penstock_endpoint.Outcome:
    """The outcome, to be encoded by the endpoint."""
    if encoding.spoil is not None:
        spoiled = outcome_to_pb(outcome, encoding).SerializeToString()
        return penstock_endpoint.Outcome(0, 0, *NO_TOKENS, True, Timings(), spoiled)
    rest = b""
    if outcome.has_rest:
        rest = rest_to_pb(outcome, encoding.tells_tokens).SerializeToString()
    tells = encoding.tells_tokens
    return penstock_endpoint.Outcome(
        outcome.epoch, outcome.step, *outcome.sampled, tells, outcome.timings, rest
    )


def _with_more(found: Plan, plan: penstock_endpoint.Plan, slots: Sequence[int]) -> Plan:
    step, more = found.step, dict(plan.more)
    return Plan(
        found.epoch,
        step,
        retired=more["retired_slots"],
        admitted=[_admit(encoded) for encoded in plan.admitted],
        appended=found.appended,
        copied_from=more["copied_from"],
        copied_to=more["copied_to"],
        spans=found.spans,
        open_drafts=by_slot(step, OPEN, slots, more["open_spans"], more["open_drafts"]),
        snapshots=by_slot(step, KEPT, slots, more["snapshot_spans"], more["snapshots"]),
    )


def _admit(encoded: bytes) -> Admit:
    try:
        return admit_from_pb(pb.Admit.FromString(encoded))
    except DecodeError as error:
        raise PenstockError(f"the stream of plans broke: {error}") from None


def _numbers(column: bytes) -> Numbers:
    return np.frombuffer(column, np.int64)
