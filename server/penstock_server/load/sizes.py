"""Chooses the limits of a shard (slots, blocks, lengths, tokens of a step) and the sizes of its decode graphs."""

import logging
from dataclasses import replace

import torch

from penstock_server.architectures.lengths import check_lengths, does_not_fit, positions_needed
from penstock_server.architectures.recurrent_spec import KeptShape, StateShape
from penstock_server.architectures.spec import ModelFacts
from penstock_server.base.errors import StartError
from penstock_server.engine.limits import Limits
from penstock_server.load.allocation import allocating
from penstock_server.load.cpu_memory import budget_bytes, free_bytes
from penstock_server.load.cuda_memory import cache_budget_bytes
from penstock_server.load.graph_sizes import GraphSizes
from penstock_server.load.loaded import Loaded
from penstock_server.network.parked import bytes_of
from penstock_server.network.states import state_bytes

logger = logging.getLogger(__name__)

_MAX_STEP_TOKENS = {"cpu": 2048, "cuda": 8192}
# In larger steps a GPU takes longer than the host does for their launches, even with 1B weights: 1024 rows are 3 ms of
# products at 800 TFLOP/s and 8 ms of reading caches of 1,000 tokens, beside 5 ms of the host for 16 layers. Unmeasured.
_LARGEST_GRAPH = 1024
# Snapshots take one part of so many of what is left for them and the cache.
_SHARE_OF_SNAPSHOTS = 4
# A recording saves some 3 ms of a step of 8 layers. Beside the products of larger steps that is little, and what they
# keep for intermediate results is much. So there are recordings of more than 32 rows where rows times bytes of weights
# are few for each thread.
_RECORDED_ROWS = 32, 128
_RECORDED_BYTES = 1 << 33
# A step of 17 rows costs no more than one of 24: between sizes only padding is lost, at most a fifth from 256 on.
_USUAL_GRAPH_SIZES = (
    *(1, 2, 4, *range(8, 64, 8)),
    *(*range(64, 256, 32), *range(256, 512, 64), *range(512, _LARGEST_GRAPH, 128)),
)
# Tokens of steps with prompts. In larger steps a GPU takes longer than the host does for their launches: a layer of 8B
# at 512 tokens takes 0.3 ms at 800 TFLOP/s. Unmeasured. At most an eighth of what is computed is padding from 128 on.
_PROMPT_GRAPH_SIZES = (*range(16, 128, 16), *range(128, 513, 32))
# On a CPU, as far as recordings pay: there padding takes time, too, at most a tenth from 80 tokens on.
_RECORDED_PROMPTS = range(8, 257, 8)


def choose_graph_sizes(loaded: Loaded) -> GraphSizes:
    """The graphs to capture: none if the model or its attention needs the host, even on one rank only. A rank's part of
    experts of few bits may begin within a byte, and ranks capture their sums together."""
    is_capturable = loaded.model.capturable and loaded.attention.capturable
    if not all(answer for (answer,) in loaded.group.gather_numbers(int(is_capturable))):
        return GraphSizes()
    return GraphSizes(_decode_graph_sizes(loaded), _prompt_graph_sizes(loaded))


def _decode_graph_sizes(loaded: Loaded) -> tuple[int, ...]:
    """Numbers of rows. On a CPU every number has a recording: a padded row would cost time. There a drafted token is a
    row, too, so that there may be more of them than slots."""
    asked, num_slots = loaded.config.cuda.graph_sizes, loaded.config.cache.num_slots
    if asked is not None:
        return tuple(sorted({min(size, num_slots) for size in asked}))
    if loaded.device.type != "cuda":
        few, many = _RECORDED_ROWS
        return tuple(range(1, max(few, min(_affordable_recording(loaded), many)) + 1))
    return (*(size for size in _USUAL_GRAPH_SIZES if size < num_slots), min(num_slots, _LARGEST_GRAPH))


def _affordable_recording(loaded: Loaded) -> int:
    """Rows. The same on all ranks: they exchange what each has computed."""
    affordable = _RECORDED_BYTES * torch.get_num_threads() // max(1, bytes_of(loaded.model))
    return min(number for (number,) in loaded.group.gather_numbers(affordable))


def _prompt_graph_sizes(loaded: Loaded) -> tuple[int, ...]:
    """Numbers of tokens, where prompts are attended to by kernels that a graph can hold. Recurrent layers compute
    longer spans in chunks, whose number the host must know, and stages compare such steps."""
    asked, cuda = loaded.config.cuda.prompt_graph_sizes, loaded.config.cuda
    is_free = loaded.model.state_shape is not None or loaded.ranks.stage.count > 1
    if not loaded.attention.captures_prompts or cuda.graph_sizes == () or is_free:
        return ()
    if asked is None:
        asked = _PROMPT_GRAPH_SIZES
        if loaded.device.type != "cuda":
            affordable = _affordable_recording(loaded)
            asked = tuple(size for size in _RECORDED_PROMPTS if size <= affordable)
    most = wanted_limits(loaded).max_step_tokens
    return tuple(sorted({min(size, most) for size in asked}))


def wanted_limits(loaded: Loaded) -> Limits:
    """The limits that were asked for; `num_blocks` is 0 where it follows from the memory that is left."""
    cache, facts = loaded.config.cache, loaded.model.facts
    check_lengths(cache, facts)
    return Limits(
        num_slots=cache.num_slots,
        num_blocks=cache.num_blocks or 0,
        block_size=cache.block_size,
        vocab_size=facts.vocab_size,
        max_sequence_len=cache.max_sequence_len or facts.max_sequence_len,
        max_step_tokens=cache.max_step_tokens or _MAX_STEP_TOKENS[loaded.device.type],
        num_draft_states=cache.num_draft_states if isinstance(loaded.model.state_shape, StateShape) else 0,
    )


def choose_limits(loaded: Loaded, graph_sizes: GraphSizes) -> Limits:
    """The limits of this shard, the same on all ranks; raises StartError where what was asked for does not fit."""
    cache, facts = loaded.config.cache, loaded.model.facts
    limits = wanted_limits(loaded)
    most = wanted_snapshots(loaded)
    if cache.num_snapshots and not most:
        logger.warning("--max-snapshots %d changes nothing: this model keeps no states", cache.num_snapshots)
    if cache.num_blocks is not None:
        limits = replace(limits, num_snapshots=_beside_blocks(most, loaded, limits, graph_sizes))
    else:
        budget = _left_of(_budget_bytes(loaded, limits, graph_sizes), loaded, limits)
        limits = replace(limits, num_snapshots=_affordable_snapshots(most, budget, loaded))
        budget -= limits.num_snapshots * state_bytes(loaded.model.state_shape, loaded.model.dtype)
        each = loaded.block_bytes(cache.block_size)
        # Where no layer has keys and values, blocks count positions and take nothing.
        affordable = budget // each if each else limits.num_slots * limits.max_blocks
        # No more than all slots together can fill.
        limits = replace(limits, num_blocks=min(limits.num_slots * limits.max_blocks, affordable))
    # All ranks must agree, and each sees its own free memory.
    of_ranks = loaded.group.gather_numbers(limits.num_blocks, limits.num_snapshots)
    num_blocks, num_snapshots = (min(numbers) for numbers in zip(*of_ranks, strict=True))
    limits = replace(limits, num_blocks=num_blocks, num_snapshots=num_snapshots)
    return _fitting(limits, facts, cache.max_sequence_len is not None)


def wanted_snapshots(loaded: Loaded) -> int:
    """The number that was asked for; by default one at the end of each prompt that runs, and one in its output."""
    cache, shape = loaded.config.cache, loaded.model.state_shape
    if shape is None or isinstance(shape, KeptShape):
        return 0
    return 2 * cache.num_slots if cache.num_snapshots is None else cache.num_snapshots


def _affordable_snapshots(most: int, budget: int, loaded: Loaded) -> int:
    """All that were asked for; else what a part of the budget holds."""
    each = state_bytes(loaded.model.state_shape, loaded.model.dtype)
    if not each:
        return most
    if loaded.config.cache.num_snapshots is None:
        return min(most, budget // _SHARE_OF_SNAPSHOTS // each)
    if most * each > budget:
        raise StartError(
            f"{most} snapshots take {most * each} bytes, and {budget} are left for them and the KV cache; lower "
            "--max-snapshots or free memory"
        )
    return most


def _beside_blocks(most: int, loaded: Loaded, limits: Limits, graph_sizes: GraphSizes) -> int:
    """The number that fits beside the wanted blocks; raises StartError if it is less than was asked for."""
    each = state_bytes(loaded.model.state_shape, loaded.model.dtype)
    if not each or not most:
        return most
    blocks = limits.num_blocks * loaded.block_bytes(limits.block_size)
    budget = _left_of(_free_bytes(loaded, limits, graph_sizes), loaded, limits) - blocks
    if loaded.config.cache.num_snapshots is not None and most * each > budget:
        raise StartError(
            f"{most} snapshots take {most * each} bytes, and {max(budget, 0)} are left for them beside the KV cache; "
            "lower --max-snapshots or --max-batch-total-tokens, or free memory"
        )
    affordable = max(min(most, budget // each), 0)
    if affordable < most:
        logger.warning(
            "snapshots lowered from %d to %d, what is left beside --max-batch-total-tokens", most, affordable
        )
    return affordable


def _left_of(budget: int, loaded: Loaded, limits: Limits) -> int:
    """The bytes left for blocks where each slot has a state; raises StartError where the states take all of them."""
    # And the spare one.
    num_states = limits.num_slots + 1 + limits.num_draft_states
    taken = num_states * state_bytes(loaded.model.state_shape, loaded.model.dtype)
    if not taken:
        return budget
    gib = (size / 1024**3 for size in (taken, budget))
    counts = (limits.num_slots, _and_drafts(limits))
    logger.info("states of %d slots%s: %.2f GiB of the %.2f for them and the cache", *counts, *gib)
    if taken >= budget:
        raise StartError(
            f"the states of {limits.num_slots} slots{_and_drafts(limits)} take {taken} bytes, and {budget} are left "
            f"for them and the KV cache; lower --max-batch-size{_or_drafts(limits)} or free memory"
        )
    return budget - taken


def _and_drafts(limits: Limits) -> str:
    return f" and behind {limits.num_draft_states} drafts" if limits.num_draft_states else ""


def _or_drafts(limits: Limits) -> str:
    return ", --speculate, --speculate-max" if limits.num_draft_states else ""


def _free_bytes(loaded: Loaded, limits: Limits, graph_sizes: GraphSizes) -> int:
    """The bytes for states and a cache whose size was asked for: on a CPU more than its usual share."""
    if loaded.device.type != "cuda":
        return free_bytes(_num_shards(loaded))
    return _budget_bytes(loaded, limits, graph_sizes)


def _num_shards(loaded: Loaded) -> int:
    group = loaded.config.group
    return group.ranks_here * group.num_replicas


def _budget_bytes(loaded: Loaded, limits: Limits, graph_sizes: GraphSizes) -> int:
    if loaded.device.type != "cuda":
        return budget_bytes(_num_shards(loaded))
    fraction = loaded.config.cuda.memory_fraction
    arguments = (loaded.engine, limits, fraction, graph_sizes, loaded.parts_bytes)
    return allocating("the largest step (see --max-batch-prefill-tokens)", cache_budget_bytes, *arguments)


def _fitting(limits: Limits, facts: ModelFacts, is_asked: bool) -> Limits:
    """Limits with sequences no longer than the cache holds; raises StartError where the length was asked for."""
    positions = limits.num_blocks * limits.block_size
    if positions >= positions_needed(facts, limits.max_sequence_len, limits.block_size):
        return limits
    if is_asked or positions < limits.block_size:
        raise does_not_fit(limits.max_sequence_len, positions)
    logger.warning(
        "max sequence length lowered from %d to %d, what the cache holds", limits.max_sequence_len, positions
    )
    return replace(limits, max_sequence_len=positions)
