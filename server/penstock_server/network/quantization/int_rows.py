"""Integers whose rows lie in a file as kernels take them, with scales beside them."""

import torch
from penstock_kernels import IntGroups


def int_groups(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    in_features: int,
    bits: int,
    group_size: int,
    group_of_column: torch.Tensor | None = None,
) -> IntGroups:
    """A whole matrix. Codes: words of any size, or int8; one scale for all rows is repeated without memory."""
    if codes.dtype != torch.int8:
        codes = codes.view(torch.uint8)
    rows = codes.shape[0]
    scales = scales.reshape(-1, 1) if scales.dim() < 2 else scales
    zeros = zeros.reshape(-1, 1) if zeros is not None and zeros.dim() < 2 else zeros
    return IntGroups(
        codes,
        scales.expand(rows, -1),
        None if zeros is None else zeros.expand(rows, -1),
        in_features,
        bits,
        group_size,
        group_of_column=group_of_column,
    )
