"""Matrix products of a model's layers: by PyTorch on a GPU, in C on a CPU, which was measured to be faster.

In PyTorch a row's result may depend on the number of rows. Where it must not, a GPU runs a kernel whose tiles are the
same for every number, and what C does not take is padded. In C it never depends on the number of rows.
"""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | tuple[torch.Tensor, ...],
    bias: torch.Tensor | None = None,
    invariant: bool = False,
) -> torch.Tensor:
    """`x @ weight.T + bias`: [num_rows, len] and [num_columns, len] to [num_rows, num_columns].

    A tuple of weights means one weight with the rows of all: they may lie apart in memory, and nothing is copied.
    With `invariant`, a row's result has the same bits however many rows there are.
    """
    weights = weight if isinstance(weight, tuple) else (weight,)
    _check(x, weights, bias)
    return table.linear(x, weights, bias, invariant)


def _check(x: torch.Tensor, weights: tuple[torch.Tensor, ...], bias: torch.Tensor | None) -> None:
    """A small product takes little longer than its checks, so messages are made only where something is wrong."""
    num_columns = 0
    is_right = x.dim() == 2 and x.stride(1) == 1
    for weight in weights:
        num_columns += weight.shape[0]
        is_right = (
            is_right and weight.shape[1:] == x.shape[1:] and weight.stride(1) == 1 and weight.dtype == x.dtype
        )
    if bias is not None:
        is_right = is_right and bias.shape == (num_columns,) and bias.dtype == x.dtype
    if not is_right:
        _refuse(x, weights, bias, num_columns)


def _refuse(
    x: torch.Tensor, weights: tuple[torch.Tensor, ...], bias: torch.Tensor | None, num_columns: int
) -> None:
    shapes = [tuple(weight.shape) for weight in weights]
    require(
        x.dim() == 2 and all(len(shape) == 2 and x.shape[1] == shape[1] for shape in shapes),
        lambda: f"linear: x {tuple(x.shape)} against weight {', '.join(map(str, shapes))}",
    )
    require(bias is None or bias.shape == (num_columns,), "linear: one bias per row of the weight")
    for weight in weights:
        require_same_dtype("linear", x=x, weight=weight, bias=weight if bias is None else bias)
    raise ValueError("linear: the numbers of a row must be contiguous")
