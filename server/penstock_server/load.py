"""From settings to a ready engine: device, dtype, sizes, weights. A choice that the user can undo names its flag."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from penstock_kernels.backends import Backend

from penstock_server.attention_backend import choose_backend, choose_cache_dtype
from penstock_server.checks import Limits
from penstock_server.config import MAX_TOP_LOGPROBS, ServerConfig
from penstock_server.cuda_memory import cache_budget_bytes
from penstock_server.decode_graphs import DecodeGraphs
from penstock_server.distributed import Group
from penstock_server.engine import Description, Engine
from penstock_server.errors import StartError
from penstock_server.grammar import Grammars
from penstock_server.kv_cache import CacheFormat, KVCache, KvScale, block_bytes, budget_bytes
from penstock_server.kv_scales import read_scales
from penstock_server.layers.placement import Placement
from penstock_server.log import stage
from penstock_server.model import Model
from penstock_server.model_folder import ModelFolder
from penstock_server.models.decoder import Decoder
from penstock_server.models.spec import ModelFacts
from penstock_server.out_of_memory import is_out_of_memory
from penstock_server.slots import Slots
from penstock_server.weights import fill_with_noise, load_weights

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MAX_STEP_TOKENS = {"cpu": 2048, "cuda": 8192}
# A step of 17 rows costs no more than one of 24: between sizes only padding is lost.
_LARGEST_GRAPH = 256
# Beyond, what a step computes counts for more than its number of ops.
_LARGEST_RECORDING = 32
_USUAL_GRAPH_SIZES = (1, 2, 4, *range(8, 64, 8), *range(64, _LARGEST_GRAPH, 32))


class _Loaded(NamedTuple):
    """What every engine of this process is made of."""

    config: ServerConfig
    folder: ModelFolder
    device: torch.device
    group: Group
    model: Model
    grammars: Grammars
    form: CacheFormat
    attention: Backend

    def engine(self, limits: Limits, graph_sizes: Sequence[int] = (), is_poisoned: bool = False) -> Engine:
        """With a cache and rows of its own."""
        # One block more, for what the spare row writes.
        sizes = (limits.num_blocks + 1, limits.block_size, self.form, self.device, is_poisoned)
        cache = _allocating("the KV cache (see --num-blocks)", KVCache, self.model.cache_shape, *sizes)
        slots = Slots(limits, self.grammars, self.device, self.config.batch_invariant)
        graphs = DecodeGraphs(self.model, cache, slots, graph_sizes) if graph_sizes else None
        return Engine(self.model, cache, slots, self.group, self.describe(limits), graphs)

    def describe(self, limits: Limits) -> Description:
        """What Describe reports."""
        return Description(
            spec=self.model.facts,
            limits=limits,
            dtype=name_of(self.model.dtype),
            kv_cache_dtype=name_of(self.form.dtype),
            attention_backend=self.attention.name,
            device=str(self.device),
            rank=self.group.rank,
            world_size=self.group.size,
            max_top_logprobs=min(MAX_TOP_LOGPROBS, self.model.facts.vocab_size),
            abilities=(
                "prompt_logprobs",
                *(["grammar"] if self.grammars.available else []),
                *self.model.abilities,
            ),
            generation=self.folder.generation,
        )


def load_engine(config: ServerConfig, folder: ModelFolder) -> Engine:
    """Build, fill and warm up the engine of this rank; raises StartError or, when the group breaks, ShardFailed."""
    loaded = _load(config, folder)
    graph_sizes = _graph_sizes(loaded)
    engine = loaded.engine(_limits(loaded, graph_sizes), graph_sizes, config.cache.is_poisoned)
    if engine.graphs is not None:
        with stage(logger, "graphs"):
            engine.graphs.capture()
    loaded.group.begin_steps()
    with stage(logger, "warm-up"):
        engine.warm_up()
    return engine


def _load(config: ServerConfig, folder: ModelFolder) -> _Loaded:
    device = _device(config)
    dtype = _dtype(config.dtype, folder.dtype, device)
    kept = choose_cache_dtype(config, dtype, device)
    torch.set_num_threads(config.threads or max(1, len(os.sched_getaffinity(0)) // config.group.world_size))
    with stage(logger, "group"):
        group = Group(config.group, device)
    attention = choose_backend(config, folder.spec, group, dtype, kept, device)
    with stage(logger, "weights"):
        placement = Placement(group, dtype, config.batch_invariant)
        model = _allocating("the weights", _model, config, folder, placement, device)
    logger.info("attention by %s, KV cache of %s", attention.name, name_of(kept))
    grammars = Grammars(config.tokenizer_path, model.facts.vocab_size, model.facts.eos_token_ids)
    form = CacheFormat(kept, _scales(folder, dtype, kept), attention.attend)
    return _Loaded(config, folder, device, group, model, grammars, form, attention)


def _scales(folder: ModelFolder, dtype: torch.dtype, kept: torch.dtype) -> tuple[KvScale, ...]:
    """Those of the checkpoint, where the cache is of a smaller type than the model."""
    if kept == dtype or folder.spec is None or folder.checkpoint is None:
        return ()
    return read_scales(folder.checkpoint, folder.spec)


def name_of(dtype: torch.dtype) -> str:
    """As people write it."""
    return str(dtype).removeprefix("torch.")


def _graph_sizes(loaded: _Loaded) -> list[int]:
    """Rows of the decode steps with a graph, or a recording on a CPU: there every number, as no row is free."""
    asked, num_slots = loaded.config.cuda.graph_sizes, loaded.config.cache.num_slots
    if not (loaded.model.capturable and loaded.attention.capturable):
        return []
    if asked is not None:
        return sorted({min(size, num_slots) for size in asked})
    if loaded.device.type != "cuda":
        return list(range(1, min(num_slots, _LARGEST_RECORDING) + 1)) if loaded.group.size == 1 else []
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


def _limits(loaded: _Loaded, graph_sizes: Sequence[int]) -> Limits:
    cache, facts = loaded.config.cache, loaded.model.facts
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
        max_step_tokens=cache.max_step_tokens or _MAX_STEP_TOKENS[loaded.device.type],
    )
    if cache.num_blocks is None:
        budget = _budget_bytes(loaded, limits, graph_sizes)
        affordable = budget // block_bytes(loaded.model.cache_shape, cache.block_size, loaded.form.dtype)
        # No more than all slots could ever fill.
        limits = replace(limits, num_blocks=min(limits.num_slots * limits.max_blocks, affordable))
    # All ranks must agree, and each sees its own free memory.
    num_blocks = min(numbers[0] for numbers in loaded.group.gather_numbers(limits.num_blocks))
    return _fitting(replace(limits, num_blocks=num_blocks), facts, cache.max_sequence_len is not None)


def _positions_needed(facts: ModelFacts, limits: Limits) -> int:
    """Of the cache, for one sequence. Blocks behind the window of a model are given back while it runs."""
    if facts.attention_window is None:
        return limits.max_sequence_len
    num_seen = -(-(facts.attention_window - 1) // limits.block_size) + 1
    return min(limits.max_sequence_len, num_seen * limits.block_size)


def _budget_bytes(loaded: _Loaded, limits: Limits, graph_sizes: Sequence[int]) -> int:
    if loaded.device.type != "cuda":
        return budget_bytes(loaded.group.size)
    arguments = (loaded.engine, limits, loaded.config.cuda.memory_fraction, graph_sizes)
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
