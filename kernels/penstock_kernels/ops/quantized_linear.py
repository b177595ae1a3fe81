"""Matrix products with weights in few bits, which are read as they are stored."""

import itertools

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require
from penstock_kernels.base.quantized import Matrix, Quantized, rounds_inputs
from penstock_kernels.native.recording import refuse_recording
from penstock_kernels.ops.linear import linear

_X_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def quantized_linear(
    x: torch.Tensor,
    weight: Matrix | tuple[Matrix, ...],
    bias: torch.Tensor | None = None,
    invariant: bool = False,
) -> torch.Tensor:
    """`x @ weight.T + bias`: [num_rows, in_features] to [num_rows, out_features], of the type of `x`.

    A tuple of weights means one weight with the rows of all, each with its own scales. Neighbours of one `kind` are one
    product; others, and parts that are plain tensors, are products of their own. With `invariant`, a row's result has
    the same bits however many rows there are. Where a weight has `input_bits`, `x` is rounded first, for it alone.
    """
    parts = weight if isinstance(weight, tuple) else (weight,)
    _check(x, parts, bias)
    products, first = [], 0
    for kind, run in itertools.groupby(parts, _kind):
        alike = tuple(run)
        count = sum(part.shape[0] for part in alike)
        its_bias = None if bias is None else bias[first : first + count]
        first += count
        products.append(_product(x, alike, its_bias, invariant, kind is None))
    return products[0] if len(products) == 1 else torch.cat(products, dim=1)


def _kind(part: Matrix) -> object:
    return None if isinstance(part, torch.Tensor) else part.kind


def _product(
    x: torch.Tensor, alike: tuple[Matrix, ...], bias: torch.Tensor | None, invariant: bool, is_plain: bool
) -> torch.Tensor:
    if is_plain:
        weights = tuple(part for part in alike if isinstance(part, torch.Tensor))
        return linear(x, weights, bias, invariant)
    parts: tuple[Quantized, ...] = tuple(part for part in alike if not isinstance(part, torch.Tensor))
    if table.quantized_linear.choose(x, parts, bias, invariant) is table.quantized_linear.reference:
        refuse_recording("weights of few bits become floats one after the other")
    return table.quantized_linear(x, parts, bias, invariant)


def _check(x: torch.Tensor, parts: tuple[Matrix, ...], bias: torch.Tensor | None) -> None:
    num_columns = sum(part.shape[0] for part in parts)
    require(
        x.dim() == 2 and all(part.shape[1] == x.shape[1] for part in parts),
        lambda: f"quantized_linear: x {tuple(x.shape)} against {[tuple(part.shape) for part in parts]}",
    )
    require(
        not any(rounds_inputs(part) and not part.takes_rounded for part in parts),
        "quantized_linear: input_bits needs groups in order, without offsets",
    )
    require(x.dtype in _X_DTYPES, lambda: f"quantized_linear: x is {x.dtype}")
    require(x.stride(1) == 1 or x.numel() == 0, "quantized_linear: the numbers of a row must be contiguous")
    require(
        bias is None or (bias.shape == (num_columns,) and bias.dtype == x.dtype),
        "quantized_linear: one bias per row of the weight, of the type of x",
    )
