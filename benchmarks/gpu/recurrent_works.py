"""Recurrent layers, of prompts and of decodes, in the shapes of models, and who else computes them.

The gated delta rule of Qwen3-Next and of Kimi-Linear, whose rows forget by themselves (KDA); the state spaces of
Nemotron-H (Mamba-2) and of Falcon-Mamba (Mamba-1); and the short convolution before each.
"""

import importlib
from functools import partial
from typing import Any

import penstock_kernels as ops
import torch
from penstock_kernels import reference
from penstock_kernels.backends import Unsupported

from benchmarks.gpu.works import Call, Case, Sizes, Work, random

_TESTS = "test_recurrent.py"
_REFERENCE, _OTHERS = "PyTorch in chunks", "flash-linear-attention"
# Tokens that are computed side by side.
_CHUNK = 64


def cases(sizes: Sizes) -> list[Case]:
    kinds = (
        ("delta rule", _delta, sizes.delta, (_REFERENCE, _OTHERS)),
        ("delta rule by rows", _delta_by_rows, sizes.delta_by_rows, (_REFERENCE, _OTHERS)),
        ("Mamba-2", _space, sizes.space, (_REFERENCE,)),
        ("Mamba-1", _scan, sizes.scan, (_REFERENCE,)),
        ("short convolution", _convolution, sizes.convolution, (_REFERENCE,)),
    )
    return [
        Case(
            f"{name}, {count} x {length} tokens", partial(make, sizes, length, count, *shape), _TESTS, rivals
        )
        for name, make, shapes, rivals in kinds
        for length, count, *shape in shapes
    ]


def _delta(sizes: Sizes, length: int, count: int, key_heads: int, heads: int, dim: int) -> Work:
    return _delta_rule(sizes, length, count, key_heads, (heads, dim), ())


def _delta_by_rows(sizes: Sizes, length: int, count: int, heads: int, dim: int) -> Work:
    return _delta_rule(sizes, length, count, heads, (heads, dim), (dim,))


def _delta_rule(
    sizes: Sizes, length: int, count: int, key_heads: int, shape: tuple[int, int], rows: tuple[int, ...]
) -> Work:
    """The floor: what is given, results and states once, or the products of chunks, each once."""
    (heads, dim), tokens = shape, length * count
    query, key = (random(sizes, tokens, key_heads, dim) for _ in range(2))
    value, step, beta = (random(sizes, tokens, heads, *rest) for rest in ((dim,), rows, ()))
    rate, bias = (random(sizes, heads, *rest, dtype=torch.float32) for rest in ((), rows))
    state = random(sizes, count, heads, dim, dim, dtype=torch.float32)
    given = query, key, value, step, beta, ops.Decay(rate, bias), state
    spans = _spans(sizes, length, count)
    products = 3 * dim * dim + 2 * min(length, _CHUNK) * dim
    return Work(
        lambda: ops.gated_delta_rule(*given, spans),
        2 * (query.nbytes + value.nbytes + state.nbytes) + step.nbytes + beta.nbytes,
        2 * tokens * heads * products,
        {
            _REFERENCE: lambda: lambda: reference.gated_delta_rule(*given, spans),
            _OTHERS: partial(_others, given, (count, length)),
        },
    )


def _space(sizes: Sizes, length: int, count: int, groups: int, heads: int, dim: int, size: int) -> Work:
    """The floor: as of the delta rule."""
    tokens = length * count
    x, step = random(sizes, tokens, heads, dim), random(sizes, tokens, heads)
    inward, outward = (random(sizes, tokens, groups, size) for _ in range(2))
    rate, bias, skip = (random(sizes, heads, dtype=torch.float32) for _ in range(3))
    state = random(sizes, count, heads, dim, size, dtype=torch.float32)
    given = x, step, ops.Decay(rate, bias), inward, outward, skip, state
    spans = _spans(sizes, length, count)
    return Work(
        lambda: ops.state_space_scan(*given, spans),
        2 * (x.nbytes + inward.nbytes + state.nbytes) + step.nbytes,
        2 * tokens * heads * (2 * dim * size + min(length, _CHUNK) * (dim + size) // 2),
        {_REFERENCE: lambda: lambda: reference.state_space_scan(*given, spans)},
    )


def _scan(sizes: Sizes, length: int, count: int, channels: int, size: int) -> Work:
    """The floor: what is given, results and states once. An element of a state takes three products and an exponential,
    none of them a product of matrices."""
    tokens = length * count
    x, step = (random(sizes, tokens, channels) for _ in range(2))
    inward, outward = (random(sizes, tokens, size) for _ in range(2))
    bias, skip = (random(sizes, channels, dtype=torch.float32) for _ in range(2))
    rate = random(sizes, channels, size, dtype=torch.float32).abs()
    state = random(sizes, count, channels, size, dtype=torch.float32)
    given = x, step, bias, rate, inward, outward, skip, state
    spans = _spans(sizes, length, count)
    return Work(
        lambda: ops.selective_scan(*given, spans),
        3 * x.nbytes + 2 * (inward.nbytes + state.nbytes),
        rivals={_REFERENCE: lambda: lambda: reference.selective_scan(*given, spans)},
    )


def _convolution(sizes: Sizes, length: int, count: int, channels: int, width: int) -> Work:
    """The floor: inputs, results and states once."""
    x, weight = random(sizes, length * count, channels), random(sizes, channels, width)
    state = random(sizes, count, width - 1, channels)
    given = x, weight, None, state
    spans = _spans(sizes, length, count)
    return Work(
        lambda: ops.causal_conv(*given, spans, silu=True),
        2 * (x.nbytes + state.nbytes),
        rivals={_REFERENCE: lambda: lambda: reference.causal_conv(*given, spans, silu=True)},
    )


def _spans(sizes: Sizes, length: int, count: int) -> ops.RecurrentSpans:
    """Spans of one length, each of which continues a state."""
    slots = torch.arange(count, device=sizes.device)
    return ops.RecurrentSpans(slots, slots < 0, (length,) * count)


def _others(given: tuple[Any, ...], shape: tuple[int, int]) -> Call:
    """The same by kernels of flash-linear-attention, which take keys for every head and the logarithm of the decay."""
    query, key, value, step, beta, decay, state = given
    kind = "kda" if step.dim() == 3 else "gated_delta_rule"
    way = "fused_recurrent" if shape[1] == 1 else "chunk"
    try:
        compute = getattr(importlib.import_module(f"fla.ops.{kind}"), f"{way}_{kind}")
    except (ImportError, AttributeError) as error:
        raise Unsupported(f"flash-linear-attention cannot be imported: {error}") from error
    copies = value.shape[1] // key.shape[1]
    query, key = (part.repeat_interleave(copies, dim=1) for part in (query, key))
    left = decay.log_left(decay.steps(step))
    inputs = [part.unflatten(0, shape) for part in (query, key, value, left, beta.sigmoid())]
    return lambda: compute(
        *inputs, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
