"""Chooses the entry of the cache in which a rank keeps the weights that it quantizes at load."""

import logging

import torch

from penstock_server.base.config import AtLoad, QuantizeCache
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.quantize_cache.entry import Entry, entry_of
from penstock_server.network.layers.placement import Placement
from penstock_server.network.quantization.at_load import TARGETS
from penstock_server.network.quantization.rounding import ROUNDING_VERSION

logger = logging.getLogger(__name__)


def cache_entry(
    cache: QuantizeCache, asked: AtLoad, checkpoint: Checkpoint, device: torch.device, placement: Placement
) -> Entry | None:
    """None where nothing is kept."""
    if cache.max_gb == 0:
        return None
    # Names that mean the same have one entry.
    rounding = {"target": TARGETS[asked].name, "version": ROUNDING_VERSION, "device": device.type}
    if placement.expert_parallel:
        rounding["experts"] = "whole"
    group, its_stage = placement.group, placement.stage
    if its_stage.count > 1:
        rounding["stages"] = str(its_stage.count)
    rank = its_stage.number * group.size + group.rank
    try:
        return entry_of(cache, checkpoint, rounding, rank, its_stage.count * group.size)
    except OSError as error:
        logger.warning("quantized weights are not kept for later starts: %s", error)
        return None
