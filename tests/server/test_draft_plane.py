"""Which positions of the cache a drafter has computed, too, where some steps have no drafts."""

from penstock_server.engine.draft_plane import DraftPlane
from penstock_server.engine.limits import Limits
from penstock_server.engine.plan import Admit, Append, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams

LIMITS = Limits(
    num_slots=3, num_blocks=10, block_size=4, max_sequence_len=32, max_step_tokens=32, vocab_size=8
)


def admit(slot: int, *blocks: int) -> Admit:
    return Admit(slot, [5] * 9, 9, list(blocks), SamplingParams())


def followed(*plans: Plan) -> DraftPlane:
    plane = DraftPlane(LIMITS)
    for plan in plans:
        plane.follow(plan, lambda _slot: True)
    return plane


def begun(plane: DraftPlane, *blocks: int) -> int:
    """How far the plane is filled for a sequence that begins behind these blocks."""
    start = 4 * len(blocks)
    plane.follow(Plan(1, 9, admitted=[admit(2, *blocks, 9)], spans=[Span(2, start, 1)]), lambda _slot: True)
    return plane.filled(2)


BEGINS = Plan(1, 1, admitted=[admit(0, 1)], spans=[Span(0, 0, 4)])
GROWS = Plan(1, 2, spans=[Span(0, 4, 1)], appended=[Append(0, [2])])


def test_blocks_that_came_without_drafts_are_known_before_anything_is_drafted() -> None:
    plane = followed(BEGINS, GROWS, Plan(1, 3, spans=[Span(0, 5, 1)], open_drafts={0: 2}))
    plane.fill(0, 8)
    assert begun(plane, 1, 2) == 8


def test_blocks_of_a_slot_are_not_those_of_its_next_sequence() -> None:
    again = Plan(1, 3, retired=[0], admitted=[admit(0, 5)], spans=[Span(0, 0, 4)])
    plane = followed(BEGINS, GROWS, again, Plan(1, 4, spans=[Span(0, 4, 1)], appended=[Append(0, [6])]))
    plane.follow(Plan(1, 5, spans=[Span(0, 5, 1)], open_drafts={0: 2}), lambda _slot: True)
    plane.fill(0, 8)
    assert begun(plane, 5, 6) == 8


def test_blocks_that_were_given_out_again_hold_nothing_of_the_drafter() -> None:
    plane = followed(BEGINS, GROWS, Plan(1, 3, spans=[Span(0, 5, 1)], open_drafts={0: 2}))
    plane.fill(0, 8)
    plane.follow(Plan(1, 4, retired=[0], admitted=[admit(1, 5)], spans=[Span(1, 0, 4)]), lambda _slot: True)
    plane.follow(Plan(1, 5, spans=[Span(1, 4, 1)], appended=[Append(1, [2, 77])]), lambda slot: slot != 1)
    plane.follow(Plan(1, 6, retired=[1]), lambda _slot: False)
    assert begun(plane, 1, 2) == 4


def test_when_all_slots_are_dropped_blocks_that_came_last_are_known_too() -> None:
    plane = followed(BEGINS, GROWS, Plan(1, 3, spans=[Span(0, 5, 1)], open_drafts={0: 2}))
    plane.fill(0, 8)
    plane.follow(Plan(1, 4, admitted=[admit(1, 5)], spans=[Span(1, 0, 4)]), lambda _slot: True)
    plane.follow(Plan(1, 5, spans=[Span(1, 4, 1)], appended=[Append(1, [1])]), lambda _slot: True)
    plane.clear()
    assert begun(plane, 1, 2) == 0
