"""Divides the spans of a step among the decode and the prefill kernel."""

import torch

from penstock_kernels.base.attention_spans import AttentionArguments
from penstock_kernels.gpu.attention_call import AttentionCall
from penstock_kernels.gpu.attention_work import Cut, step_work
from penstock_kernels.gpu.decode_attention import decode_attention
from penstock_kernels.gpu.prefill_attention import prefill_attention, tile_for
from penstock_kernels.gpu.tiles import processor
from penstock_kernels.gpu.work_limits import most_part_tokens, parts_bytes, resident_items


def paged_attention(arguments: AttentionArguments) -> torch.Tensor:
    query = arguments.query
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if out.numel() == 0:
        return out
    resident = resident_items(processor(query.device), arguments.num_kv_heads)
    cut = Cut(arguments.group, tile_for(arguments).rows, arguments.scoring.reach, resident)
    layout, decodes = step_work(arguments.spans, len(query), cut)
    call = AttentionCall(arguments, layout.query_starts, layout.context_lens, out)
    for work in decodes:
        decode_attention(call, work)
    if len(layout.tiles):
        prefill_attention(call, layout.tiles)
    return out


def attention_parts_bytes(
    device: torch.device,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    num_spans: int,
    num_tokens: int,
    max_context_len: int,
    unbatched: bool,
) -> int:
    """See the public function."""
    resident = resident_items(processor(device), num_kv_heads)
    part_tokens = most_part_tokens(num_spans, num_tokens, max_context_len, resident, unbatched)
    return parts_bytes(part_tokens, num_heads, head_dim)
