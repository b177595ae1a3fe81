"""From settings to a ready engine: device, dtype, sizes, weights. A choice that the user can undo names its flag."""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

import torch

from penstock_server.checks import Limits
from penstock_server.config import ServerConfig
from penstock_server.cuda_memory import cache_budget_bytes
from penstock_server.decode_graphs import DecodeGraphs
from penstock_server.distributed import Group
from penstock_server.engine import Engine, describe, is_out_of_memory
from penstock_server.errors import StartError
from penstock_server.grammar import Grammars
from penstock_server.kv_cache import KVCache, block_bytes, budget_bytes
from penstock_server.layers.placement import Placement
from penstock_server.log import stage
from penstock_server.model import Model
from penstock_server.model_folder import ModelFolder
from penstock_server.models.decoder import Decoder
from penstock_server.models.spec import ModelFacts
from penstock_server.slots import Slots
from penstock_server.weights import fill_with_noise, load_weights

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MAX_STEP_TOKENS = {"cpu": 2048, "cuda": 8192}
# A step of 17 rows costs no more than one of 24: between sizes only padding is lost.
_LARGEST_GRAPH = 256
_USUAL_GRAPH_SIZES = (1, 2, 4, *range(8, 64, 8), *range(64, _LARGEST_GRAPH, 32))


def load_engine(config: ServerConfig, folder: ModelFolder) -> Engine:
    """Build, fill and warm up the engine of this rank; raises StartError or, when the group breaks, ShardFailed."""
    device = _device(config)
    dtype = _dtype(config.dtype, folder.dtype, device)
    torch.set_num_threads(config.threads or max(1, len(os.sched_getaffinity(0)) // config.group.world_size))
    with stage(logger, "group"):
        group = Group(config.group, device)
    with stage(logger, "weights"):
        placement = Placement(group, dtype, config.batch_invariant)
        model = _allocating("the weights", _model, config, folder, placement, device)
    grammars = Grammars(config.tokenizer_path, model.facts.vocab_size, model.facts.eos_token_ids)
    limits = _limits(config, model, group, grammars, device)
    # One block more, for what the spare row writes.
    sizes = (limits.num_blocks + 1, limits.block_size, dtype, device, config.cache.is_poisoned)
    cache = _allocating("the KV cache (see --num-blocks)", KVCache, model.cache_shape, *sizes)
    slots = Slots(limits, grammars, device, config.batch_invariant)
    graph_sizes = _graph_sizes(config, model, device)
    graphs = DecodeGraphs(model, cache, slots, graph_sizes) if graph_sizes else None
    engine = Engine(
        model, cache, slots, group, describe(slots, model, folder.generation, device, group), graphs
    )
    if graphs is not None:
        with stage(logger, "graphs"):
            graphs.capture()
    group.begin_steps()
    with stage(logger, "warm-up"):
        engine.warm_up()
    return engine


def _graph_sizes(config: ServerConfig, model: Model, device: torch.device) -> list[int]:
    """Rows of the decode steps with a graph. Only on CUDA unless asked for: elsewhere they gain nothing."""
    asked, num_slots = config.cuda.graph_sizes, config.cache.num_slots
    if asked is not None:
        return sorted({min(size, num_slots) for size in asked}) if model.capturable else []
    if device.type != "cuda" or not model.capturable:
        return []
    return [size for size in _USUAL_GRAPH_SIZES if size < num_slots] + [min(num_slots, _LARGEST_GRAPH)]


def _model(config: ServerConfig, folder: ModelFolder, placement: Placement, device: torch.device) -> Model:
    """Our decoder where a row describes the model, else that of transformers."""
    if folder.spec is None:
        logger.info("%s is computed by the code of transformers", folder.model_type)
        from penstock_server.models.borrowed import load_borrowed

        return load_borrowed(folder, placement, device)
    logger.info("%s is computed by our own decoder", folder.model_type)
    decoder = Decoder(folder.spec, placement, device, config.cache.max_sequence_len)
    if folder.checkpoint is None:
        fill_with_noise(decoder, device)
    else:
        load_weights(decoder, folder.checkpoint, device)
    return decoder


def _allocating(
    what: str, allocate: Callable[Arguments, Result], *given: Arguments.args, **more: Arguments.kwargs
) -> Result:
    """Call what allocates; running out of memory is something the user can change."""
    try:
        return allocate(*given, **more)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise StartError(
            f"not enough memory for {what}; free some, or use a smaller model or more shards"
        ) from None


def _device(config: ServerConfig) -> torch.device:
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise StartError("--device cuda: no CUDA device is usable here; check the driver or use --device cpu")
    rank, count = config.group.rank, torch.cuda.device_count()
    if rank >= count:
        raise StartError(
            f"--device cuda: shard {rank} needs a GPU of its own and {count} are visible; lower --num-shard"
        )
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return device


def _dtype(wanted: str, of_model: str, device: torch.device) -> torch.dtype:
    if wanted == "auto":
        wanted = "float32" if device.type == "cpu" else of_model
    if wanted not in _DTYPES:
        raise StartError(f"config.json: dtype {wanted!r} is not supported; choose one with --dtype")
    if device.type == "cpu" and wanted == "float16":
        raise StartError("--dtype float16 cannot be computed on a cpu; use --dtype bfloat16 or float32")
    return _DTYPES[wanted]


def _limits(
    config: ServerConfig, model: Model, group: Group, grammars: Grammars, device: torch.device
) -> Limits:
    cache, facts = config.cache, model.facts
    max_sequence_len = cache.max_sequence_len or facts.max_sequence_len
    if max_sequence_len > facts.max_sequence_len:
        raise StartError(
            f"--max-sequence-len {max_sequence_len} is more than the {facts.max_sequence_len} the model was made for"
        )
    limits = Limits(
        num_slots=cache.num_slots,
        num_blocks=cache.num_blocks or 0,
        block_size=cache.block_size,
        vocab_size=facts.vocab_size,
        max_sequence_len=max_sequence_len,
        max_step_tokens=cache.max_step_tokens or _MAX_STEP_TOKENS[device.type],
    )
    if cache.num_blocks is None:
        budget = _budget_bytes(config, model, group, grammars, limits, device)
        affordable = budget // block_bytes(model.cache_shape, cache.block_size, model.dtype)
        # No more than all slots could ever fill.
        limits = replace(limits, num_blocks=min(limits.num_slots * limits.max_blocks, affordable))
    # All ranks must agree, and each sees its own free memory.
    num_blocks = min(numbers[0] for numbers in group.gather_numbers(limits.num_blocks))
    return _fitting(replace(limits, num_blocks=num_blocks), facts, cache.max_sequence_len is not None)


def _positions_needed(facts: ModelFacts, limits: Limits) -> int:
    """Of the cache, for one sequence. Blocks behind the window of a model are given back while it runs."""
    if facts.attention_window is None:
        return limits.max_sequence_len
    num_seen = -(-(facts.attention_window - 1) // limits.block_size) + 1
    return min(limits.max_sequence_len, num_seen * limits.block_size)


def _budget_bytes(
    config: ServerConfig, model: Model, group: Group, grammars: Grammars, limits: Limits, device: torch.device
) -> int:
    if device.type != "cuda":
        return budget_bytes(group.size)
    sizes = _graph_sizes(config, model, device)
    arguments = (model, group, grammars, limits, config.cuda.memory_fraction, sizes)
    return _allocating("the largest step (see --max-step-tokens)", cache_budget_bytes, *arguments)


def _fitting(limits: Limits, facts: ModelFacts, is_asked: bool) -> Limits:
    """Sequences no longer than the cache holds; an error where the length was asked for."""
    positions = limits.num_blocks * limits.block_size
    if positions >= _positions_needed(facts, limits):
        return limits
    if is_asked or positions < limits.block_size:
        raise StartError(
            f"--max-sequence-len {limits.max_sequence_len} does not fit into a cache of {positions} positions; "
            "lower it, free memory or raise --num-blocks"
        )
    logger.warning(
        "max sequence length lowered from %d to %d, what the cache holds", limits.max_sequence_len, positions
    )
    return replace(limits, max_sequence_len=positions)
