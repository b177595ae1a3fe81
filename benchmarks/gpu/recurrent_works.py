"""Prompts of recurrent layers: the gated delta rule in the shapes of Qwen3-Next, the state space of Mamba-2 in those of
Nemotron-H, and who else computes them."""

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
    delta = [
        Case(
            f"delta rule, {count} x {length} tokens",
            partial(_delta, sizes, length, count, key_heads, heads, dim),
            _TESTS,
            (_REFERENCE, _OTHERS),
        )
        for length, count, key_heads, heads, dim in sizes.delta
    ]
    space = [
        Case(
            f"Mamba-2, {count} x {length} tokens",
            partial(_space, sizes, length, count, *shape),
            _TESTS,
            (_REFERENCE,),
        )
        for length, count, *shape in sizes.space
    ]
    return delta + space


def _delta(sizes: Sizes, length: int, count: int, key_heads: int, heads: int, dim: int) -> Work:
    """The floor: queries, keys, values, results and states once, or the products of chunks, each once."""
    tokens = length * count
    query, key = (random(sizes, tokens, key_heads, dim) for _ in range(2))
    value, step, beta = (random(sizes, tokens, heads, *shape) for shape in ((dim,), (), ()))
    rate, bias = (random(sizes, heads, dtype=torch.float32) for _ in range(2))
    state = random(sizes, count, heads, dim, dim, dtype=torch.float32)
    slots = torch.arange(count, device=sizes.device)
    given = query, key, value, step, beta, ops.Decay(rate, bias), state
    spans = ops.RecurrentSpans(slots, slots < 0, (length,) * count)
    num_bytes = 2 * (query.nbytes + value.nbytes + state.nbytes)
    products = 3 * dim * dim + 2 * _CHUNK * dim
    return Work(
        lambda: ops.gated_delta_rule(*given, spans),
        num_bytes,
        2 * tokens * heads * products,
        {
            _REFERENCE: lambda: lambda: reference.gated_delta_rule(*given, spans),
            _OTHERS: partial(_others, given[:6], (count, length)),
        },
    )


def _space(sizes: Sizes, length: int, count: int, groups: int, heads: int, dim: int, size: int) -> Work:
    """The floor: as of the delta rule."""
    tokens = length * count
    x, step = random(sizes, tokens, heads, dim), random(sizes, tokens, heads)
    inward, outward = (random(sizes, tokens, groups, size) for _ in range(2))
    rate, bias, skip = (random(sizes, heads, dtype=torch.float32) for _ in range(3))
    state = random(sizes, count, heads, dim, size, dtype=torch.float32)
    slots = torch.arange(count, device=sizes.device)
    given = x, step, ops.Decay(rate, bias), inward, outward, skip, state
    spans = ops.RecurrentSpans(slots, slots < 0, (length,) * count)
    return Work(
        lambda: ops.state_space_scan(*given, spans),
        2 * (x.nbytes + inward.nbytes + state.nbytes),
        2 * tokens * heads * (2 * dim * size + _CHUNK * (dim + size) // 2),
        {_REFERENCE: lambda: lambda: reference.state_space_scan(*given, spans)},
    )


def _others(given: tuple[Any, ...], shape: tuple[int, int]) -> Call:
    """The same by its kernels, which take every head's own keys, and the logarithm of what is left."""
    try:
        compute = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    except ImportError as error:
        raise Unsupported(f"flash-linear-attention cannot be imported: {error}") from error
    query, key, value, step, beta, decay = given
    copies = value.shape[1] // key.shape[1]
    query, key = (part.repeat_interleave(copies, dim=1) for part in (query, key))
    left = decay.log_left(decay.steps(step))
    inputs = [part.unflatten(0, shape) for part in (query, key, value, left, beta.sigmoid())]
    return lambda: compute(*inputs, output_final_state=True, use_qk_l2norm_in_kernel=True)
