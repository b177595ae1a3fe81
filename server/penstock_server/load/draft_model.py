"""Loads the model that drafts tokens for another: its weights, and the format of its plane of the cache."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from penstock_kernels.backends import Backend

from penstock_server.architectures.spec import ModelFacts
from penstock_server.base.config import GroupConfig, ServerConfig
from penstock_server.base.errors import StartError
from penstock_server.files.draft_folder import DraftModelFolder
from penstock_server.files.token_map import TokenMap
from penstock_server.load.allocation import allocating
from penstock_server.load.attention_backend import choose_backend, choose_cache_dtype
from penstock_server.load.device import choose_dtype
from penstock_server.load.expert_parallel import choose_expert_parallel
from penstock_server.load.read_model import quantization_of, read_decoder, scales_of
from penstock_server.network.decoder import Decoder
from penstock_server.network.distributed import Group
from penstock_server.network.kv_cache import CacheFormat
from penstock_server.network.layers.placement import Placement
from penstock_server.network.model import Model
from penstock_server.network.translated import TranslatedModel

logger = logging.getLogger(__name__)

# Where more sequences generate, drafts rarely pay.
_LARGEST_GRAPH = 32


class DraftModel(NamedTuple):
    """The parts of a drafter with a draft model."""

    model: Model
    cache_format: CacheFormat
    attention: Backend

    def graph_sizes(self, sizes: Sequence[int], group: Group) -> list[int]:
        """The model's graph sizes for steps with drafts; empty unless all ranks can capture the draft model."""
        is_capturable = self.model.capturable and self.attention.capturable
        agreed = all(answer for (answer,) in group.gather_numbers(int(is_capturable)))
        return [size for size in sizes if size <= _LARGEST_GRAPH] if agreed else []


def load_draft_model(
    config: ServerConfig, draft: DraftModelFolder, target: ModelFacts, group: Group, device: torch.device
) -> DraftModel:
    """Build and fill it; raises StartError, which names the flag."""
    try:
        return _load(config, draft, target, group, device)
    except StartError as error:
        raise StartError(f"--draft-model: {error}") from None


def _load(
    config: ServerConfig, draft: DraftModelFolder, target: ModelFacts, group: Group, device: torch.device
) -> DraftModel:
    folder = draft.model
    assert folder.spec is not None, "checked when the folder was opened"
    served_len = config.cache.max_sequence_len or target.max_sequence_len
    own_len = folder.spec.max_sequence_len
    if own_len < served_len:
        logger.warning("the draft model was made for %d tokens; behind them nothing is drafted", own_len)
    dtype = choose_dtype(config.dtype, folder.dtype, device)
    cache_dtype = choose_cache_dtype(config, dtype, device)
    build = partial(Decoder, folder.spec, device=device)
    expert_parallel = choose_expert_parallel(config.group, folder.spec)
    asked = Placement(group, dtype, config.batch_invariant, expert_parallel)
    placement = sharing(build, asked, device)
    attention = choose_backend(config, folder.spec, placement.group, dtype, cache_dtype, device)
    quantization = quantization_of(config, folder, device, placement)
    lengths = min(served_len, own_len)
    decoder = allocating("its weights", read_decoder, folder, placement, device, lengths, quantization)
    model = _translated(decoder, draft.tokens, target.vocab_size, device)
    scales = scales_of(folder, placement.stage, dtype, cache_dtype)
    cache_format = CacheFormat(cache_dtype, scales, attention.attend, attention.attend_latents)
    return DraftModel(model, cache_format, attention)


def _translated(decoder: Decoder, tokens: TokenMap | None, vocab_size: int, device: torch.device) -> Model:
    """The model with the vocabulary of the one that it drafts for, of so many tokens."""
    if tokens is None:
        return decoder
    logger.info(
        "the draft model has another vocabulary: it may guess %d tokens of %d", len(tokens.known), vocab_size
    )
    return TranslatedModel(decoder, tokens, vocab_size, device)


def sharing(build: Callable[[Placement], object], placement: Placement, device: torch.device) -> Placement:
    """The ranks that a model is divided among: all of them, or each has it whole where it cannot be divided."""
    try:
        build(placement)
    except StartError as reason:
        logger.warning("every shard has the whole draft model: %s", reason)
        return replace(placement, group=Group(GroupConfig(0, 1, None), device))
    return placement
