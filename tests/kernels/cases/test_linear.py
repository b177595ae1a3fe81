"""The product whose rows do not depend on their number, against plain arithmetic and against itself."""

import pytest
import torch
from closeness import DTYPES, assert_close
from penstock_kernels import linear


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "num_columns", "length"), [(1, 64, 64), (65, 130, 200), (0, 8, 16)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_product(
    num_rows: int, num_columns: int, length: int, has_bias: bool, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(num_rows, length, device=device).to(dtype)
    weight = (torch.randn(num_columns, length, device=device) / length**0.5).to(dtype)
    bias = torch.randn(num_columns, device=device).to(dtype) if has_bias else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert_close(linear(x, weight, bias, invariant=True), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(70, 96, device=device).to(dtype)
    weight = torch.randn(80, 96, device=device).to(dtype)
    whole = linear(x, weight, None, invariant=True)
    for rows in (slice(0, 1), slice(3, 11), slice(60, 70)):
        assert torch.equal(linear(x[rows], weight, None, invariant=True), whole[rows])
