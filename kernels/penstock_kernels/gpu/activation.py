"""Gated activations: one read of both halves, one write. And gates of what a layer found, in place."""

import torch
import triton
import triton.language as tl

from penstock_kernels.gpu.chain import begin, chained

# Columns of a program: 8 per thread at 4 warps, one load of 16 bytes. Unmeasured.
_BLOCK = 1024


@triton.jit
def _gated_activation_kernel(
    x_ptr,
    out_ptr,
    stride_row,
    alpha,
    limit,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < DIM
    gate = tl.load(x_ptr + row * stride_row + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * stride_row + DIM + columns, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        activated = gate * tl.sigmoid(gate)
    elif ACTIVATION == "clamped_swiglu":
        # A comparison with NaN is false: it stays.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up)) + 1.0
        activated = gate * tl.sigmoid(alpha * gate)
    elif ACTIVATION == "gelu":
        activated = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:  # 0.5 * (1 + tanh(z)) is sigmoid(2 * z)
        activated = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    tl.store(out_ptr + row * DIM + columns, (activated * up).to(out_ptr.dtype.element_ty), mask=mask)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    return _activate(gate_up, "silu")


def gelu_mul(gate_up: torch.Tensor, tanh: bool) -> torch.Tensor:
    return _activate(gate_up, "gelu_tanh" if tanh else "gelu")


def clamped_swiglu(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    return _activate(gate_up, "clamped_swiglu", alpha, limit)


def _activate(gate_up: torch.Tensor, activation: str, alpha: float = 0.0, limit: float = 0.0) -> torch.Tensor:
    """`activation`: silu, gelu, gelu_tanh, or clamped_swiglu, which takes alpha and limit."""
    dim = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], dim), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel() == 0:
        return out
    rows = gate_up.reshape(-1, 2 * dim)
    block = min(_BLOCK, triton.next_power_of_2(dim))
    _gated_activation_kernel[(rows.shape[0], triton.cdiv(dim, block))](
        rows,
        out,
        rows.stride(0),
        alpha,
        limit,
        DIM=dim,
        BLOCK=block,
        ACTIVATION=activation,
        num_warps=4,
        **chained(gate_up.device),
    )
    return out


@triton.jit
def _sigmoid_gate_kernel(
    x_ptr, gate_ptr, stride_gate,
    DIM: tl.constexpr, BLOCK: tl.constexpr, IS_SHARED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < DIM
    x = tl.load(x_ptr + row * DIM + columns, mask=mask, other=0.0).to(tl.float32)
    gates = gate_ptr + row * stride_gate
    if IS_SHARED:
        x *= tl.sigmoid(tl.load(gates).to(tl.float32))
    else:
        x *= tl.sigmoid(tl.load(gates + columns, mask=mask, other=0.0).to(tl.float32))
    tl.store(x_ptr + row * DIM + columns, x.to(x_ptr.dtype.element_ty), mask=mask)


def gate_by_sigmoid(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    num_rows, dim = x.shape
    if x.numel() == 0:
        return x
    block = min(_BLOCK, triton.next_power_of_2(dim))
    _sigmoid_gate_kernel[(num_rows, triton.cdiv(dim, block))](
        x,
        gates,
        gates.stride(0),
        DIM=dim,
        BLOCK=block,
        IS_SHARED=gates.shape[1] < dim,
        num_warps=4,
        **chained(x.device),
    )
    return x
