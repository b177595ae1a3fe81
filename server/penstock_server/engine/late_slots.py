"""Slots that sat out a step because the mask of their grammar was not there, and have to sit out another."""

from collections.abc import Container
from dataclasses import replace

from penstock_server.engine.plan import Plan, Spans
from penstock_server.engine.slots import Slots
from penstock_server.network.distributed import Group


def still_late(slots: Slots, plan: Plan, errors: Container[int], group: Group) -> list[int]:
    """The late slots that have spans in this plan. All ranks of the group agree on them."""
    waiting = slots.waiting(plan, errors)
    if not waiting:
        return []
    is_alone = len(waiting) == len(plan.spans)
    return sorted(slots.grammars.still_late(waiting, is_alone, group.gather_numbers))


def without(plan: Plan, late: list[int]) -> Plan:
    """The plan without the spans of these slots: the others are computed as if these did not exist."""
    return replace(plan, spans=Spans.of(plan.spans).without(late)) if late else plan
