"""From settings to a ready engine: device, dtype, sizes, weights. A choice that the user can undo names its flag."""

import logging
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from penstock_server.checks import Limits
from penstock_server.config import CacheConfig, ServerConfig
from penstock_server.distributed import Group
from penstock_server.engine import Engine, Model, describe, is_out_of_memory
from penstock_server.errors import StartError
from penstock_server.grammar import Grammars
from penstock_server.kv_cache import KVCache, block_bytes, budget_bytes
from penstock_server.layers.placement import Placement
from penstock_server.log import stage
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


def load_engine(config: ServerConfig, folder: ModelFolder) -> Engine:
    """Build, fill and warm up the engine of this rank; raises StartError or, when the group breaks, ShardFailed."""
    device = _device(config)
    dtype = _dtype(config.dtype, folder.dtype, device)
    torch.set_num_threads(config.threads or max(1, len(os.sched_getaffinity(0)) // config.group.world_size))
    with stage(logger, "group"):
        group = Group(config.group)
    with stage(logger, "weights"):
        placement = Placement(group, dtype, config.batch_invariant)
        model = _allocating("the weights", _model, config, folder, placement, device)
    facts, shape = model.facts, model.cache_shape
    limits = _limits(config.cache, facts, group, block_bytes(shape, config.cache.block_size, dtype), device)
    sizes = (limits.num_blocks, limits.block_size, dtype, device, config.cache.is_poisoned)
    cache = _allocating("the KV cache (see --num-blocks)", KVCache, shape, *sizes)
    grammars = Grammars(config.tokenizer_path, facts.vocab_size, facts.eos_token_ids)
    slots = Slots(limits, grammars, device, config.batch_invariant)
    engine = Engine(model, cache, slots, group, describe(slots, model, folder, device, group))
    group.begin_steps()
    with stage(logger, "warm-up"):
        engine.warm_up()
    return engine


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
    if config.group.world_size > 1:
        raise StartError("--device cuda: several shards are not supported yet; use --num-shard 1")
    return torch.device("cuda", config.group.rank)


def _dtype(wanted: str, of_model: str, device: torch.device) -> torch.dtype:
    if wanted == "auto":
        wanted = "float32" if device.type == "cpu" else of_model
    if wanted not in _DTYPES:
        raise StartError(f"config.json: dtype {wanted!r} is not supported; choose one with --dtype")
    if device.type == "cpu" and wanted == "float16":
        raise StartError("--dtype float16 cannot be computed on a cpu; use --dtype bfloat16 or float32")
    return _DTYPES[wanted]


def _limits(
    cache: CacheConfig, facts: ModelFacts, group: Group, bytes_per_block: int, device: torch.device
) -> Limits:
    max_sequence_len = cache.max_sequence_len or facts.max_sequence_len
    if max_sequence_len > facts.max_sequence_len:
        raise StartError(
            f"--max-sequence-len {max_sequence_len} is more than the {facts.max_sequence_len} the model was made for"
        )
    num_blocks = cache.num_blocks or _affordable_blocks(
        cache, max_sequence_len, group, bytes_per_block, device
    )
    # All ranks must agree, and each sees its own free memory.
    num_blocks = min(numbers[0] for numbers in group.gather_numbers(num_blocks))
    positions = num_blocks * cache.block_size
    if positions < _positions_needed(facts, max_sequence_len, cache.block_size):
        if cache.max_sequence_len is not None or positions < cache.block_size:
            raise StartError(
                f"--max-sequence-len {max_sequence_len} does not fit into a cache of {positions} positions; "
                "lower it, free memory or raise --num-blocks"
            )
        logger.warning(
            "max sequence length lowered from %d to %d, what the cache holds", max_sequence_len, positions
        )
        max_sequence_len = positions
    return Limits(
        num_slots=cache.num_slots,
        num_blocks=num_blocks,
        block_size=cache.block_size,
        vocab_size=facts.vocab_size,
        max_sequence_len=max_sequence_len,
        max_step_tokens=cache.max_step_tokens or _MAX_STEP_TOKENS[device.type],
    )


def _positions_needed(facts: ModelFacts, max_sequence_len: int, block_size: int) -> int:
    """Of the cache, for one sequence. Blocks behind the window of a model are given back while it runs."""
    if facts.attention_window is None:
        return max_sequence_len
    num_seen = -(-(facts.attention_window - 1) // block_size) + 1
    return min(max_sequence_len, num_seen * block_size)


def _affordable_blocks(
    cache: CacheConfig, max_sequence_len: int, group: Group, bytes_per_block: int, device: torch.device
) -> int:
    """As many as the memory allows, and no more than all slots could ever fill."""
    enough = cache.num_slots * -(-max_sequence_len // cache.block_size)
    return min(enough, budget_bytes(device, group.size) // bytes_per_block)
