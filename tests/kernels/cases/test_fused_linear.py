"""Products of few rows with a norm before and an activation after them, against plain arithmetic."""

import pytest
import torch
from closeness import DTYPES, assert_close
from penstock_kernels import InputNorm, fused_linear, reference
from penstock_kernels.base.devices import runs_kernels


@pytest.fixture(autouse=True)
def _all_are_taken(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    if runs_kernels(device):
        monkeypatch.setattr("penstock_kernels.gpu.fused_linear.is_faster", lambda *_: True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "num_columns", "length"), [(1, 64, 64), (16, 130, 200), (3, 70, 1100)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_product(
    num_rows: int,
    num_columns: int,
    length: int,
    has_bias: bool,
    has_norm: bool,
    gated: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    x = torch.randn(num_rows, length + 3, device=device).to(dtype)[:, :length]
    weight = (torch.randn(num_columns, length, device=device) / length**0.5).to(dtype)
    bias = torch.randn(num_columns, device=device).to(dtype) if has_bias else None
    norm, exact_norm = None, None
    if has_norm:
        scales, residual = torch.randn(length, device=device).to(dtype), torch.randn(num_rows, length).to(x)
        norm = InputNorm(scales, 1e-5, residual.clone(), 0.5)
        exact_norm = InputNorm(scales.double(), 1e-5, (x + residual).double() - x.double(), 0.5)
    exact_bias = None if bias is None else bias.double()
    expected = reference.fused_linear(x.double(), weight.double(), exact_bias, exact_norm, gated)
    assert_close(fused_linear(x, weight, bias, norm, gated), expected, slack=2)
    if norm is not None:
        assert torch.equal(norm.residual, x + residual)


def test_no_rows(device: torch.device) -> None:
    x, weight = torch.zeros(0, 16, device=device), torch.zeros(6, 16, device=device)
    assert fused_linear(x, weight, gated=True).shape == (0, 3)
