"""Compiles every variant of a kernel that a shard may need, before memory is measured and graphs are captured."""

import logging
import time
from dataclasses import replace

from penstock_server.architectures.spec import ModelSpec
from penstock_server.engine.limits import Limits
from penstock_server.engine.rehearsal import Rehearsal
from penstock_server.engine.warm_up import blocks_needed
from penstock_server.load.graph_sizes import GraphSizes
from penstock_server.load.loaded import Loaded
from penstock_server.load.sizes import wanted_snapshots

logger = logging.getLogger(__name__)


def compile_kernels(loaded: Loaded, limits: Limits, sizes: GraphSizes) -> None:
    """On a GPU: rehearse the warm-up with a small cache, whose size changes no variant. Nothing is computed."""
    from penstock_kernels.gpu.ahead import compiling_only

    begun = time.perf_counter()
    facts = loaded.model.facts
    num_chosen = facts.num_chosen if isinstance(facts, ModelSpec) else None
    num_blocks = min(blocks_needed(limits, num_chosen), limits.num_slots * limits.max_blocks)
    num_snapshots = min(wanted_snapshots(loaded), 1)
    engine = loaded.engine(replace(limits, num_blocks=num_blocks, num_snapshots=num_snapshots), sizes)
    with compiling_only() as compiled:
        Rehearsal(engine).compile()
    logger.info(
        "kernels: %d variants compiled and %d found on disk in %.1f s",
        compiled.num_new,
        compiled.num_found,
        time.perf_counter() - begun,
    )
