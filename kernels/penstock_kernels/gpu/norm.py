"""Root-mean-square norm and layer norm, fused with the residual addition before them: one read and one write each."""

import torch
import triton
import triton.language as tl

from penstock_kernels.gpu.chain import begin, chained

# Numbers that one program holds: 16 per thread at 4 warps. Unmeasured.
_TILE = 2048


@triton.jit(do_not_specialize=["num_rows"])
def _norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    inner,
    num_weight_rows,
    stride_outer,
    stride_inner,
    stride_residual_outer,
    stride_residual_inner,
    eps,
    weight_offset,
    DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    CENTERED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_DIM)
    mask = (rows < num_rows)[:, None] & (columns < DIM)[None, :]
    outer, inside = rows // inner, rows % inner
    starts = outer * stride_outer + inside * stride_inner
    x = tl.load(x_ptr + starts[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual_starts = outer * stride_residual_outer + inside * stride_residual_inner
        residual_ptrs = residual_ptr + residual_starts[:, None] + columns[None, :]
        x += tl.load(residual_ptrs, mask=mask, other=0.0).to(tl.float32)
        # The rounded sum is normalised: later layers read it back.
        rounded = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptrs, rounded, mask=mask)
        x = rounded.to(tl.float32)
    if CENTERED:
        mean = tl.sum(x, axis=1) / DIM
        x = tl.where((columns < DIM)[None, :], x - mean[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(x * x, axis=1) / DIM + eps)
    weight_starts = (rows % num_weight_rows) * DIM
    weight = tl.load(weight_ptr + weight_starts[:, None] + columns[None, :], mask=mask, other=0.0).to(
        tl.float32
    )
    y = x * inverse[:, None] * (weight + weight_offset)
    if HAS_BIAS:
        bias_ptrs = bias_ptr + weight_starts[:, None] + columns[None, :]
        y += tl.load(bias_ptrs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + rows[:, None] * DIM + columns[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None, weight_offset: float
) -> torch.Tensor:
    return _norm(x, weight, None, eps, residual, weight_offset, centered=False)


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    return _norm(x, weight, bias, eps, residual, 0.0, centered=True)


def _norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None,
    weight_offset: float,
    centered: bool,
) -> torch.Tensor:
    """Layer norm when centered, else root-mean-square norm."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    dim, rows = x.shape[-1], _as_rows(x)
    residual_rows = rows if residual is None else _as_rows(residual)
    num_rows = x.numel() // dim
    block_dim = triton.next_power_of_2(dim)
    block_rows = max(1, _TILE // block_dim)
    _norm_kernel[(triton.cdiv(num_rows, block_rows),)](
        rows,
        residual_rows,
        weight,
        weight if bias is None else bias,
        out,
        num_rows,
        rows.shape[1],
        weight.numel() // dim,
        rows.stride(0),
        rows.stride(1),
        residual_rows.stride(0),
        residual_rows.stride(1),
        eps,
        weight_offset,
        DIM=dim,
        BLOCK_ROWS=block_rows,
        BLOCK_DIM=block_dim,
        HAS_RESIDUAL=residual is not None,
        CENTERED=centered,
        HAS_BIAS=bias is not None,
        num_warps=num_warps_of_row(block_dim),
        **chained(x.device),
    )
    return out


def num_warps_of_row(block_dim: int) -> int:
    """Warps for 16 numbers a thread: two loads of 16 bytes in 16-bit types. Unmeasured."""
    return min(max(block_dim // 512, 4), 16)


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """A view [outer, inner, dim]: slices of a fused projection are read in place."""
    if x.dim() == 2:
        return x.unsqueeze(1)
    return x if x.dim() == 3 else x.view(-1, 1, x.shape[-1])
