"""Slots that sat out a step because the mask of their grammar was not there, and have to sit out another."""

from collections.abc import Container
from dataclasses import replace

from penstock_server.engine.plan import Plan, Spans
from penstock_server.engine.slots import Slots
from penstock_server.network.distributed import Group


def still_late(slots: Slots, plan: Plan, errors: Container[int], group: Group) -> list[int]:
    """Those with spans in this plan, on all ranks of the group alike."""
    waiting = slots.waiting(plan, errors)
    if not waiting:
        return []
    is_alone = len(waiting) == len(plan.spans)
    return sorted(slots.grammars.still_late(waiting, is_alone, group.gather_numbers))


def without(plan: Plan, late: list[int]) -> Plan:
    """The plan but for the spans of these slots, so that the others are computed as if they were not there."""
    return replace(plan, spans=Spans.of(plan.spans).without(late)) if late else plan
