"""Gather of embedding rows, of which a rank may hold a part."""

import torch
import triton
import triton.language as tl

from penstock_kernels.gpu.chain import begin, chained

# Columns of a program: 8 per thread at 4 warps, one load of 16 bytes. Unmeasured.
_BLOCK = 1024


@triton.jit(do_not_specialize_on_alignment=["ids_ptr"])
def _embedding_kernel(
    ids_ptr,
    weight_ptr,
    out_ptr,
    first,
    num_held,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids_ptr + token).to(tl.int64) - first
    num_columns = tl.where((row >= 0) & (row < num_held), DIM, 0)
    x = tl.load(weight_ptr + row * DIM + columns, mask=columns < num_columns, other=0.0)
    tl.store(out_ptr + token * DIM + columns, x, mask=columns < DIM)


def embedding(token_ids: torch.Tensor, weight: torch.Tensor, first: int) -> torch.Tensor:
    dim = weight.shape[1]
    out = torch.empty((token_ids.shape[0], dim), dtype=weight.dtype, device=weight.device)
    if out.numel() == 0:
        return out
    block = min(_BLOCK, triton.next_power_of_2(dim))
    _embedding_kernel[(token_ids.shape[0], triton.cdiv(dim, block))](
        token_ids,
        weight,
        out,
        first,
        weight.shape[0],
        DIM=dim,
        BLOCK=block,
        num_warps=4,
        **chained(weight.device),
    )
    return out
