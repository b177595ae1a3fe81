"""Groups of numbers divided by their root mean square, with a gate before or behind that: one read, one write."""

import torch
import triton
import triton.language as tl


@triton.jit
def _gated_norm_kernel(
    x_ptr, gate_ptr, weight_ptr, out_ptr, stride_gate, stride_weight, eps,
    NUM_GROUPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, GATE_FIRST: tl.constexpr,
    HAS_SILU: tl.constexpr,
):  # fmt: skip
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    places = (token * NUM_GROUPS + group) * SIZE + columns
    x = tl.load(x_ptr + places, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + token * stride_gate + group * SIZE + columns, mask=mask, other=0.0)
    gate = gate.to(tl.float32)
    opened = tl.sigmoid(gate)
    if HAS_SILU:
        opened *= gate
    if GATE_FIRST:
        x *= opened
    x *= tl.rsqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    # The normed numbers are rounded before they are multiplied by the weight.
    x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
    x *= tl.load(weight_ptr + group * stride_weight + columns, mask=mask, other=0.0)
    if not GATE_FIRST:
        x *= opened
    tl.store(out_ptr + places, x.to(out_ptr.dtype.element_ty), mask=mask)


def gated_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    gate_first: bool,
    has_silu: bool = True,
) -> torch.Tensor:
    num_tokens, num_groups, size = x.shape
    out = torch.empty(gate.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    block = triton.next_power_of_2(size)
    _gated_norm_kernel[(num_tokens, num_groups)](
        x,
        gate,
        weight,
        out,
        gate.stride(0),
        weight.stride(0) if weight.dim() == 2 else 0,
        eps,
        NUM_GROUPS=num_groups,
        SIZE=size,
        BLOCK=block,
        GATE_FIRST=gate_first,
        HAS_SILU=has_silu,
        # 16 numbers a thread. Unmeasured.
        num_warps=min(max(block // 512, 1), 16),
    )
    return out
