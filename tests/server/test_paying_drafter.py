"""How many tokens are drafted for a slot follows from how many were right."""

from collections.abc import Mapping, Sequence

from penstock_server.engine.drafting import Drafter
from penstock_server.engine.paying_drafter import PayingDrafter
from penstock_server.engine.plan import Admit, Drafts, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams


class Willing(Drafter):
    """Drafts as many as it is asked for."""

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        return {slot: (7,) * most for slot, most in wanted.items()}


def numbers(drafter: PayingDrafter, slot: int, most: int, right: Sequence[int]) -> list[int]:
    """How many are drafted step by step, of each of which so many are right, at most."""
    found = []
    for num_right in right:
        drafted = len(drafter.draft([], drafter.worth(1, {slot: most})).get(slot, ()))
        found.append(drafted)
        if drafted:
            drafter.accept(slot, min(drafted, num_right))
    return found


def test_right_drafts_are_made_in_full() -> None:
    assert numbers(PayingDrafter(Willing()), 0, 4, [9] * 20) == [4] * 20
    assert numbers(PayingDrafter(Willing()), 0, 16, [16] * 5) == [6, 16, 16, 16, 16]


def test_after_wrong_drafts_some_are_tried_now_and_then() -> None:
    found = numbers(PayingDrafter(Willing()), 0, 4, [0] * 130)
    assert found[:7] == [4, 3, 2, 1, 1, 1, 0]
    assert [number for number in range(6, 130) if found[number]] == [*range(59, 63), *range(123, 127)]
    assert max(found[6:]) == 1


def test_drafts_that_are_half_right_are_short() -> None:
    found = numbers(PayingDrafter(Willing()), 0, 8, [1, 0] * 20)
    assert set(found[20:]) <= {1, 2}


def test_a_text_that_begins_to_repeat_is_noticed() -> None:
    found = numbers(PayingDrafter(Willing()), 0, 4, [0] * 15 + [4] * 150)
    assert found[59] == 1
    assert found[-1] == 4


def test_slots_are_judged_by_themselves_and_anew_when_given_out() -> None:
    drafter = PayingDrafter(Willing())
    numbers(drafter, 0, 4, [0] * 10)
    assert numbers(drafter, 1, 4, [0]) == [4]
    assert numbers(drafter, 0, 4, [0]) == [0]
    drafter.follow(Plan(1, 1, admitted=[Admit(0, [5], 1, [0], SamplingParams())]))
    assert numbers(drafter, 0, 4, [0]) == [3]


def test_a_slot_begins_as_slots_usually_are() -> None:
    drafter = PayingDrafter(Willing())
    for slot in range(40):
        numbers(drafter, slot, 4, [0] * 10)
    assert numbers(drafter, 40, 4, [4]) == [0]
    for slot in range(41, 60):
        for _ in range(64):
            drafter.worth(1, {slot: 4})
        numbers(drafter, slot, 4, [4] * 64)
    assert numbers(drafter, 60, 4, [4]) == [4]


def test_beside_many_rows_a_draft_must_be_more_likely_where_rows_cost() -> None:
    for row_cost, drafted in ((0.0, 4), (0.05, 4), (0.075, 2), (0.11, 0)):
        assert PayingDrafter(Willing(), row_cost).worth(8, {0: 4}).get(0, 0) == drafted


def test_slots_are_tried_in_the_same_step_and_never_where_no_draft_can_pay() -> None:
    drafter = PayingDrafter(Willing(), 0.1)
    wanted = dict.fromkeys(range(3), 4)
    for slot in wanted:
        numbers(drafter, slot, 4, [0] * (7 + slot))
    tried = [set(drafter.worth(3, wanted)) for _ in range(64)]
    assert [slots for slots in tried if slots] == [set(wanted)] * 4
    assert not any(drafter.worth(10, wanted) for _ in range(64))
