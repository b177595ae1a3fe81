"""How much of a GPU's memory the KV cache may take: what is left after a trial of the largest legal step."""

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from penstock_server.base.config import MAX_TOP_LOGPROBS
from penstock_server.engine.engine import Engine
from penstock_server.engine.limits import Limits
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.rows import buffer_bytes
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.load.graph_sizes import GraphSizes

logger = logging.getLogger(__name__)

# Memory that the caching allocator loses to rounding, and that libraries allocate without it.
_MARGIN_BYTES = 256 * 1024**2


def cache_budget_bytes(
    build: Callable[[Limits], Engine],
    limits: Limits,
    fraction: float,
    graph_sizes: GraphSizes,
    parts_bytes: Callable[[Limits, int], int],
) -> int:
    """Bytes for the cache of this rank. `limits.num_blocks` is not read: it follows from the result.

    `parts_bytes`: what attention of a step of so many decodes takes beside what the trial, which has prompts, shows.
    Graphs keep theirs, so that free steps need it once more.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    trial_bytes, result_bytes = _trial(build, limits, graph_sizes, device)
    step_bytes = trial_bytes + parts_bytes(limits, limits.num_slots)
    # All graphs share the memory of the largest, and their results are added.
    graph_bytes = trial_bytes * graph_sizes.num_tokens // limits.max_step_tokens + result_bytes
    if graph_sizes.num_tokens:
        graph_bytes += parts_bytes(limits, graph_sizes.num_spans(limits))
    other_bytes = graph_bytes + buffer_bytes(limits) + _MARGIN_BYTES
    free, total = torch.cuda.mem_get_info(device)
    budget = int(total * fraction) - (total - free) - step_bytes - other_bytes
    logger.info(
        "GPU memory: %.1f GiB, of which %.1f taken, %.2f for the largest step, %.2f for graphs and rows, "
        "%.1f for the cache",
        *(size / 1024**3 for size in (total, total - free, step_bytes, other_bytes, max(budget, 0))),
    )
    return max(budget, 0)


def _trial(
    build: Callable[[Limits], Engine], limits: Limits, sizes: GraphSizes, device: torch.device
) -> tuple[int, int]:
    """The bytes of the largest step beyond weights and cache, and those of graphs beyond that step."""
    num_blocks = sum(-(-length // limits.block_size) for length in _largest_lens(limits))
    engine = build(replace(limits, num_blocks=num_blocks))
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    engine.launch(largest_plan(engine.slots.limits)).resolve()
    peak = torch.cuda.max_memory_allocated(device) - before
    result_bytes = sizes.result_bytes(engine.model, engine.group.size, engine.drafter.taps)
    if engine.slots.adapters.max_adapters:
        result_bytes += sizes.adapter_bytes
    del engine
    torch.cuda.empty_cache()
    return peak, result_bytes


def largest_plan(limits: Limits) -> Plan:
    """A plan with as many tokens as a step may have, in a prompt for each slot, sampled with all options."""
    params = SamplingParams(
        temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, typical_p=0.9, repetition_penalty=1.1,
        frequency_penalty=0.1, presence_penalty=0.1, num_top_logprobs=min(MAX_TOP_LOGPROBS, limits.vocab_size),
    )  # fmt: skip
    admitted, spans, first = [], [], 0
    for slot, length in enumerate(_largest_lens(limits)):
        num_blocks = -(-length // limits.block_size)
        blocks = list(range(first, first + num_blocks))
        admitted.append(Admit(slot, [0] * length, length, blocks, params))
        spans.append(Span(slot, 0, length))
        first += num_blocks
    return Plan(0, 1, admitted=admitted, spans=spans)


def _largest_lens(limits: Limits) -> list[int]:
    num_slots = min(limits.num_slots, limits.max_step_tokens)
    length, rest = divmod(limits.max_step_tokens, num_slots)
    # A sequence must have room for one token after the prompt.
    most = max(limits.max_sequence_len - 1, 1)
    return [min(length + (slot < rest), most) for slot in range(num_slots)]
