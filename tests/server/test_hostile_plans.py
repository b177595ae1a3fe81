"""Plans that no router sends: decoding them either works or is refused by name."""

from contextlib import suppress

from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from penstock_server.base.errors import InvalidPlan
from penstock_server.engine.plan import Plan
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.conversion import plan_from_pb

_INTS = st.integers(0, 2**32 - 1)
_SMALL = st.integers(0, 5)
_IDS = st.lists(_SMALL | _INTS, max_size=6)
_FLOATS = st.floats(width=32)


@st.composite
def _admits(draw: st.DrawFn) -> pb.Admit:
    sampling = pb.SamplingParams(
        temperature=draw(_FLOATS),
        top_p=draw(_FLOATS),
        top_k=draw(_INTS),
        seed=draw(st.integers(0, 2**64 - 1)),
        banned_ids=draw(_IDS),
        banned_lens=draw(_IDS),
        allowed_mask=draw(st.binary(max_size=6)),
    )
    return pb.Admit(
        slot=draw(_SMALL | _INTS),
        token_ids=draw(_IDS),
        prompt_len=draw(_SMALL | _INTS),
        block_ids=draw(_IDS),
        sampling=sampling,
    )


@st.composite
def plans(draw: st.DrawFn) -> bytes:
    """Serialized; some have a byte changed or an end missing."""
    plan = pb.Plan(epoch=draw(_SMALL), step=draw(_SMALL), admitted=draw(st.lists(_admits(), max_size=3)))
    for name, value in pb.Plan.DESCRIPTOR.fields_by_name.items():
        is_numbers = value.is_repeated and value.cpp_type == value.CPPTYPE_UINT32
        if is_numbers:
            getattr(plan, name).extend(draw(_IDS))
    data = bytearray(plan.SerializeToString())
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans())
def test_a_plan_that_no_router_sends_is_read_or_refused(data: bytes) -> None:
    message = pb.Plan()
    # gRPC refuses bytes that are not a message, before any of our code sees them.
    with suppress(DecodeError):
        message.ParseFromString(data)
    with suppress(InvalidPlan):
        assert isinstance(plan_from_pb(message), Plan)
