"""Chooses whether each rank has whole experts or a slice of every expert, and says so."""

import logging

from penstock_server.architectures.spec import ModelSpec, MoeSpec
from penstock_server.base.config import GroupConfig
from penstock_server.network.layers.expert_share import experts_of

logger = logging.getLogger(__name__)


def choose_expert_parallel(group: GroupConfig, spec: ModelSpec | None) -> bool:
    """Whole experts where that was asked for; and where slices of an expert would not be of the same size."""
    if spec is None or spec.moe is None or group.ranks_per_stage == 1:
        return False
    is_chosen = _is_chosen(group, spec.moe)
    logger.info("experts: %s", _described(group, spec.moe) if is_chosen else _sliced(group, spec.moe))
    return is_chosen


def _is_chosen(group: GroupConfig, moe: MoeSpec) -> bool:
    if group.expert_parallel is None:
        return moe.expert_size % group.ranks_per_stage != 0
    return group.expert_parallel


def _described(group: GroupConfig, moe: MoeSpec) -> str:
    mine = experts_of(moe.num_experts, group.part, group.ranks_per_stage)
    which = f"{mine.start} to {mine.stop - 1}" if mine else "none"
    reason = "" if group.expert_parallel else f", because {group.ranks_per_stage} does not divide their size"
    return f"{which} of {moe.num_experts} are here, whole{reason}"


def _sliced(group: GroupConfig, moe: MoeSpec) -> str:
    return f"of each of {moe.num_experts}, {moe.expert_size // group.ranks_per_stage} of {moe.expert_size} are here"
