"""On a CPU: what steps with drafts compute is recorded before the first of them, as far as there is time for it.

What is recorded takes several times as long as later on. In the first seconds of a server that would be most steps with
drafts: they come in many shapes.
"""

import time
from collections.abc import Iterator
from itertools import chain

import torch

from penstock_server.base.config import DraftLimits
from penstock_server.engine.engine import Engine
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.recordings import Ahead, can_record

# So much later is a server ready, at most.
_SECONDS = 0.5


@torch.inference_mode()
def record_ahead(engine: Engine, limits: DraftLimits) -> None:
    """Before the first step. Where layers are in stages, steps with drafts are not recorded."""
    if not limits.max_drafts or not can_record(engine.slots.device) or engine.model.stage.count > 1:
        return
    end = time.perf_counter() + _SECONDS
    for record in _computations(engine, limits):
        has_time = time.perf_counter() < end
        if not engine.group.gather_numbers(int(has_time))[0][0]:
            return
        record()


def _computations(engine: Engine, limits: DraftLimits) -> Iterator[Ahead]:
    """The computations to record: those of one sequence first, then those of two, and so on."""
    graphs, drafter = engine.graphs, unlimited(engine.drafter)
    before = 0
    for count in range(1, limits.max_drafting + 1):
        most = count * (1 + limits.max_drafts)
        if graphs is not None:
            sizes = (size for size in graphs.sizes if before < size <= most)
            yield from chain.from_iterable(graphs.ahead(size, drafter.grows_trees) for size in sizes)
        yield from drafter.ahead(count, limits.max_drafts)
        before = most
