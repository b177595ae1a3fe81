"""From settings to a ready engine: device, types, weights, sizes. A choice that the user can undo names its flag."""

import logging
import os
from dataclasses import replace
from typing import NamedTuple

import torch

from penstock_server.base.config import ServerConfig
from penstock_server.base.log import stage
from penstock_server.engine.adapters import Adapters
from penstock_server.engine.engine import Engine
from penstock_server.engine.grammar import Grammars
from penstock_server.engine.limits import Limits
from penstock_server.engine.recorded_ahead import record_ahead
from penstock_server.engine.rehearsal import Rehearsal
from penstock_server.files.draft_folder import DraftFolder
from penstock_server.files.eagle_folder import EagleFolder
from penstock_server.files.medusa_folder import MedusaFolder
from penstock_server.files.model_folder import ModelFolder
from penstock_server.files.mtp_folder import MtpFolder
from penstock_server.files.versions import read_versions
from penstock_server.load.activations import check_activations
from penstock_server.load.allocation import allocating
from penstock_server.load.arithmetic import choose_arithmetic
from penstock_server.load.attention_backend import choose_backend, choose_cache_dtype
from penstock_server.load.device import choose_device, choose_dtype, name_of
from penstock_server.load.draft_model import load_draft_model
from penstock_server.load.eagle import load_eagle
from penstock_server.load.expert_parallel import choose_expert_parallel
from penstock_server.load.graph_sizes import GraphSizes
from penstock_server.load.kept import check_kept
from penstock_server.load.kernels import compile_kernels
from penstock_server.load.loaded import Drafting, Loaded
from penstock_server.load.medusa import load_medusa
from penstock_server.load.mtp import load_mtp
from penstock_server.load.read_model import quantization_of, read_decoder, scales_of
from penstock_server.load.sizes import choose_graph_sizes, choose_limits, wanted_limits
from penstock_server.load.taps import reads_states, tap_shape
from penstock_server.network.adapters import AdaptedModel
from penstock_server.network.base_weights import BaseWeights
from penstock_server.network.distributed import Group
from penstock_server.network.forward_input import TapShape
from penstock_server.network.heap import keep_freed_blocks
from penstock_server.network.kv_cache import CacheFormat
from penstock_server.network.layers.placement import Placement
from penstock_server.network.model import Model
from penstock_server.network.peer_memory import meet_peers
from penstock_server.network.quantization.quantization import Quantization
from penstock_server.network.stage import WHOLE, Ranks, meet

logger = logging.getLogger(__name__)


class Lasting(NamedTuple):
    """The parts that stay when a shard drops its model and reads it again."""

    ranks: Ranks
    grammars: Grammars


class Prepared(NamedTuple):
    """The loaded model and the sizes chosen for it, which stay when it is loaded again."""

    loaded: Loaded
    limits: Limits
    graph_sizes: GraphSizes

    def engine(self) -> Engine:
        """Make the engine, with its graphs, and warm it up."""
        loaded = self.loaded
        engine = loaded.engine(self.limits, self.graph_sizes, loaded.config.cache.is_poisoned)
        if any(self.graph_sizes):
            with stage(logger, "graphs"):
                engine.capture()
        with stage(logger, "warm-up"):
            Rehearsal(engine).warm_up()
            record_ahead(engine, loaded.config.draft_limits)
        keep_freed_blocks()
        loaded.group.begin_steps()
        return engine


def load_engine(config: ServerConfig, folder: ModelFolder, draft: DraftFolder | None = None) -> Engine:
    """Build, fill and warm up the engine of this rank; raises as `prepare` does."""
    return prepare(config, folder, draft).engine()


def prepare(config: ServerConfig, folder: ModelFolder, draft: DraftFolder | None = None) -> Prepared:
    """Load this rank's part and choose its sizes; raises StartError or, when the group breaks, ShardFailed.

    `draft`: the folder of what drafts, which `open_draft_folder` compared with the other.
    On the thread that will step: CUDA has a current device for every thread, and libraries have memory.
    """
    choose_arithmetic()
    loaded = load(config, folder, draft)
    graph_sizes = choose_graph_sizes(loaded)
    if loaded.device.type == "cuda":
        with stage(logger, "kernels"):
            compile_kernels(loaded, wanted_limits(loaded), graph_sizes)
    return Prepared(loaded, choose_limits(loaded, graph_sizes), graph_sizes)


def load(
    config: ServerConfig, folder: ModelFolder, draft: DraftFolder | None, lasting: Lasting | None = None
) -> Loaded:
    """Read the weights. `lasting`: of what was loaded before, if anything was."""
    device = choose_device(config)
    check_activations(config, folder, device)
    dtype = choose_dtype(config.dtype, folder.dtype, device)
    cache_dtype = choose_cache_dtype(config, dtype, device)
    torch.set_num_threads(config.threads or max(1, len(os.sched_getaffinity(0)) // config.group.ranks_here))
    ranks = _meet(config, folder, dtype, device) if lasting is None else lasting.ranks
    attention = choose_backend(config, folder.spec, ranks.part, dtype, cache_dtype, device)
    with stage(logger, "weights"):
        expert_parallel = choose_expert_parallel(config.group, folder.spec)
        stages = replace(ranks.stage, drafts_with_head=draft is not None and reads_states(draft))
        placement = Placement(ranks.part, dtype, config.batch_invariant, expert_parallel, stages)
        quantization = quantization_of(config, folder, device, placement)
        model = allocating("the weights", _model, config, folder, placement, device, quantization)
        check_kept(config, model, draft is not None)
    drafting = None if draft is None else _drafting(config, draft, model, placement, device)
    logger.info("attention by %s, KV cache of %s", attention.name, name_of(cache_dtype))
    grammars = _grammars(config, model) if lasting is None else lasting.grammars
    scales = scales_of(folder, ranks.stage, dtype, cache_dtype)
    cache_format = CacheFormat(cache_dtype, scales, attention.attend, attention.attend_latents)
    adapters = Adapters(
        AdaptedModel(model, config.max_adapters, BaseWeights(folder.checkpoint, quantization), device),
        config.max_adapters,
    )
    quantized = None if quantization is None else quantization.facts()
    versions = read_versions(folder, config.tokenizer_path)
    kept = (grammars, adapters, cache_format, attention, quantized, drafting, versions, expert_parallel)
    return Loaded(config, folder, device, ranks, model, *kept)


def _meet(config: ServerConfig, folder: ModelFolder, dtype: torch.dtype, device: torch.device) -> Ranks:
    with stage(logger, "group"):
        ranks = meet(config.group, device)
        _meet_peers(config, folder, ranks.part, dtype, device)
    return ranks


def _meet_peers(
    config: ServerConfig, folder: ModelFolder, group: Group, dtype: torch.dtype, device: torch.device
) -> None:
    """For our decoder, on one machine. Sums that no batch may change are of one kind, whatever the number of rows."""
    is_asked = config.cuda.all_reduce == "auto" and not config.batch_invariant
    if is_asked and folder.spec is not None and config.group.rendezvous is None:
        meet_peers(group, device, folder.spec.hidden_size * dtype.itemsize)


def _drafting(
    config: ServerConfig, draft: DraftFolder, model: Model, placement: Placement, device: torch.device
) -> Drafting | TapShape | None:
    """The drafter's parts. The first stage drafts for all; others give it the hidden states that it reads, if any."""
    if not placement.stage.is_first:
        return tap_shape(draft, model)
    with stage(logger, "draft model"):
        return _what_drafts(config, draft, model, replace(placement, stage=WHOLE), device)


def _what_drafts(
    config: ServerConfig, draft: DraftFolder, model: Model, placement: Placement, device: torch.device
) -> Drafting:
    if isinstance(draft, MedusaFolder):
        return load_medusa(draft, model, placement, device)
    if isinstance(draft, MtpFolder):
        return load_mtp(config, draft, model, placement, device)
    if isinstance(draft, EagleFolder):
        return load_eagle(config, draft, model, placement, device)
    return load_draft_model(config, draft, model.facts, placement.group, device)


def _grammars(config: ServerConfig, model: Model) -> Grammars:
    # A state cannot go back by the token of a slot that sat a step out.
    is_patient = model.state_shape is not None
    facts = model.facts
    return Grammars(config.tokenizer_path, facts.vocab_size, facts.eos_token_ids, is_patient=is_patient)


def _model(
    config: ServerConfig,
    folder: ModelFolder,
    placement: Placement,
    device: torch.device,
    quantization: Quantization | None,
) -> Model:
    """Our decoder where a row describes the model, else that of transformers."""
    if folder.checkpoint is not None and folder.checkpoint.left_out:
        logger.info(
            "%s is the text part of its model; %d tensors of other parts stay where they are",
            folder.model_type,
            len(folder.checkpoint.left_out),
        )
    if folder.spec is None:
        logger.info("%s is computed by the code of transformers", folder.model_type)
        from penstock_server.network.borrowed.build import load_borrowed

        return load_borrowed(folder, placement, device)
    return read_decoder(folder, placement, device, config.cache.max_sequence_len, quantization)
