"""Norms, activations, rotations and writes of the cache in C, in every width of vectors."""

from functools import partial
from typing import get_args

import pytest
import torch
from penstock_kernels import (
    NormOfHeads,
    activate,
    clamped_swiglu,
    gate_by_sigmoid,
    gelu_mul,
    layer_norm,
    reference,
    rms_norm,
    silu_mul,
    soft_cap,
)
from penstock_kernels.base.activation import Activation
from penstock_kernels.base.destination import Destination
from penstock_kernels.native import activation as native_activation
from penstock_kernels.native import norm as native_norm
from penstock_kernels.native import rotary as native_rotary
from penstock_kernels.native import store_kv as native_store_kv


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("rows", [1, 5, 700])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_equals_its_reference(lanes: int, rows: int, offset: float, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, 3 * 96).to(dtype)[:, 96:192], torch.randn(96).to(dtype)
    residual = torch.randn(rows, 96).to(dtype)
    expected_residual = residual.clone()
    expected = reference.rms_norm(x, weight, 1e-5, expected_residual, offset)
    found = native_norm.rms_norm(x, weight, 1e-5, residual, offset, lanes)
    torch.testing.assert_close(found, expected)
    assert torch.equal(residual, expected_residual)
    torch.testing.assert_close(
        native_norm.rms_norm(x, weight, 1e-5, None, offset, lanes),
        reference.rms_norm(x, weight, 1e-5, None, offset),
    )


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("rows", [1, 5, 700])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_centered_norm_equals_its_reference(
    lanes: int, rows: int, with_bias: bool, dtype: torch.dtype
) -> None:
    """Also around a mean that is large beside what the numbers differ by."""
    x, weight = (torch.randn(rows, 3 * 96) + 10).to(dtype)[:, 96:192], torch.randn(96).to(dtype)
    bias = torch.randn(96).to(dtype) if with_bias else None
    residual = torch.randn(rows, 96).to(dtype)
    expected_residual = residual.clone()
    tolerance = 2e-5 if dtype == torch.float32 else 0.02
    expected = reference.layer_norm(x, weight, bias, 1e-5, expected_residual)
    found = native_norm.layer_norm(x, weight, bias, 1e-5, residual, lanes)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(residual, expected_residual)
    found = native_norm.layer_norm(x, weight, bias, 1e-5, None, lanes)
    expected = reference.layer_norm(x, weight, bias, 1e-5, None)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_heads_inside_a_projection_equal_their_references(lanes: int, dtype: torch.dtype) -> None:
    heads = torch.randn(7, 9, 48).to(dtype)[:, 1:6, :32]
    weight, bias = torch.randn(2, 5, 32).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 0.04
    found = native_norm.rms_norm(heads, weight, 1e-5, None, 1.0, lanes)
    expected = reference.rms_norm(heads, weight, 1e-5, None, 1.0)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    for given in (None, bias):
        found = native_norm.layer_norm(heads, weight, given, 1e-5, None, lanes)
        expected = reference.layer_norm(heads, weight, given, 1e-5, None)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
        assert found.is_contiguous()


def test_a_norm_has_the_same_bits_in_any_batch() -> None:
    x, weight = torch.randn(900, 96), torch.randn(96)
    for norm in (partial(rms_norm, eps=1e-6), partial(layer_norm, bias=weight, eps=1e-6)):
        whole = norm(x, weight)
        for rows in (slice(0, 1), slice(7, 10), slice(3, 700)):
            assert torch.equal(norm(x[rows], weight), whole[rows])


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("offset", [None, 0.0, 1.0])
@pytest.mark.parametrize("rotary_dim", [32, 64, 96])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotated_and_stored_heads_equal_their_references(
    lanes: int, offset: float | None, rotary_dim: int, dtype: torch.dtype
) -> None:
    num_heads, num_kv_heads, dim, num_tokens = 6, 2, 96, 33
    heads = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, dim + 16).to(dtype)[..., :dim]
    cos, sin = torch.randn(2, num_tokens, rotary_dim).to(dtype)
    weight = torch.randn(num_heads + num_kv_heads, dim).to(dtype)
    norm = None if offset is None else NormOfHeads(weight, 1e-5, offset)
    cache_positions = torch.randperm(5 * 8)[:num_tokens]
    caches = torch.full((4, 5, 8, num_kv_heads, dim), torch.nan, dtype=dtype)
    ours, theirs = (Destination(caches[first], caches[first + 1], cache_positions) for first in (0, 2))
    found = native_rotary.rotate_and_store(heads, cos, sin, norm, ours, lanes)
    # The reference rounds after every op of PyTorch.
    atol, rtol = (1e-5, 1e-5) if dtype == torch.float32 else (0.1, 0.02)
    expected = reference.rotate_and_store(heads, cos, sin, norm, theirs)
    torch.testing.assert_close(found, expected, atol=atol, rtol=rtol)
    torch.testing.assert_close(caches[:2], caches[2:], atol=atol, rtol=rtol, equal_nan=True)
    assert found.is_contiguous()


@pytest.mark.parametrize("cache_position", [-1, 40])
def test_a_position_outside_the_cache_is_refused_before_anything_is_written(cache_position: int) -> None:
    caches = torch.zeros(2, 5, 8, 2, 32)
    target = Destination(caches[0], caches[1], torch.tensor([3, cache_position]))
    heads, angles = torch.randn(2, 8, 32), torch.randn(2, 32)
    reason = f"cache position {cache_position} of token 1"
    with pytest.raises(IndexError, match=f"rotate_and_store: {reason}"):
        native_rotary.rotate_and_store(heads, angles, angles, None, target)
    with pytest.raises(IndexError, match=f"store_kv: {reason}"):
        native_store_kv.store_kv(heads[:, :2], heads[:, 2:4], target)
    assert not caches.any()


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("rotary_dim", [32, 64, 96])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotated_heads_equal_their_reference(lanes: int, rotary_dim: int, dtype: torch.dtype) -> None:
    heads = torch.randn(33, 7, 96 + 16).to(dtype)[:, 1:6, :96]
    cos, sin = torch.randn(2, 33, rotary_dim).to(dtype)
    found = native_rotary.apply_rotary(heads, cos, sin, lanes)
    tolerance = 1e-5 if dtype == torch.float32 else 0.04
    expected = reference.apply_rotary(heads, cos, sin)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    assert found.is_contiguous()
    assert torch.equal(native_rotary.apply_rotary(heads[3:4], cos[3:4], sin[3:4], lanes), found[3:4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens", [0, 1, 33])
def test_stored_keys_and_values_equal_their_reference(num_tokens: int, dtype: torch.dtype) -> None:
    heads = torch.randn(num_tokens, 6, 10 + 3).to(dtype)[..., :10]
    caches = torch.full((4, 5, 8, 2, 10), torch.nan, dtype=dtype)
    positions = torch.randperm(5 * 8)[:num_tokens]
    ours, theirs = (Destination(caches[first], caches[first + 1], positions) for first in (0, 2))
    native_store_kv.store_kv(heads[:, 1:3], heads[:, 4:], ours)
    reference.store_kv(heads[:, 1:3], heads[:, 4:], theirs)
    torch.testing.assert_close(caches[:2], caches[2:], atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_activation_equals_its_reference(lanes: int, rows: int, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(rows, 200) * 8).to(dtype)[:, :96]
    gate_up[0, :4] = torch.tensor([-200.0, 200.0, 0.0, -87.5])
    gated = {
        "silu_mul": (),
        "gelu_mul": (True,),
        "clamped_swiglu": (1.702, 7.0),
    }
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for name, given in gated.items():
        found = getattr(native_activation, name)(gate_up, *given, max_lanes=lanes)
        expected = getattr(reference, name)(gate_up, *given)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    for activation in get_args(Activation):
        found = native_activation.activate(gate_up, activation, lanes)
        expected = reference.activate(gate_up, activation)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_soft_cap_equals_its_reference(lanes: int, dtype: torch.dtype) -> None:
    x = (torch.randn(3, 96) * 40).to(dtype)
    x[0, :5] = torch.tensor([-1e30, 1e30, 0.0, float("inf"), -float("inf")])
    found = native_activation.soft_cap(x, 30.0, lanes)
    tolerance = 1e-5 if dtype == torch.float32 else 0.2
    torch.testing.assert_close(found, reference.soft_cap(x, 30.0), atol=tolerance, rtol=1e-5)
    assert native_activation.soft_cap(torch.full((1, 96), float("nan")), 30.0, lanes).isnan().all()


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_the_exact_gelu_is_exact_far_below_zero(lanes: int) -> None:
    """Where results are small, each has as many right digits as large ones have."""
    x = torch.linspace(-9, 9, 4000).view(2, 2000)
    found = native_activation.activate(x, "gelu", lanes).double()
    exact = x.double() * torch.special.erfc(-x.double() / 2**0.5) / 2
    assert ((found - exact) / exact).abs().max() < 1e-5
    gates = torch.cat([x, torch.ones_like(x)], dim=1)
    assert torch.equal(native_activation.gelu_mul(gates, False, lanes).double(), found)


def test_a_cap_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"soft_cap: cap 0.0 must be above 0"):
        soft_cap(torch.zeros(1, 4), 0.0)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="activate: 'tanh' is none of silu, gelu, gelu_tanh, relu, relu2"):
        activate(torch.zeros(1, 4), "tanh")  # type: ignore[arg-type]


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gates_equal_their_reference(lanes: int, rows: int, dtype: torch.dtype) -> None:
    given, beside = torch.randn(rows, 96).to(dtype), (torch.randn(rows, 200) * 8).to(dtype)
    beside[0, 96:100] = torch.tensor([-200.0, 200.0, 0.0, -87.5])
    tolerance = 1e-6 if dtype == torch.float32 else 0.02
    for gates in (beside[:, 96:192], beside[:, 98:99]):
        expected = reference.gate_by_sigmoid(given.clone(), gates)
        found = native_activation.gate_by_sigmoid(given.clone(), gates, lanes)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
        alone = native_activation.gate_by_sigmoid(given[-1:].clone(), gates[-1:], lanes)
        assert torch.equal(alone, found[-1:])


def test_gates_of_another_shape_are_refused() -> None:
    for gates in (torch.zeros(2, 3), torch.zeros(3, 4), torch.zeros(2)):
        with pytest.raises(ValueError, match="gate_by_sigmoid: gates"):
            gate_by_sigmoid(torch.zeros(2, 4), gates)


def test_an_activation_hides_nothing_and_leaves_other_rows_alone() -> None:
    gate_up = torch.randn(5, 32)
    whole = silu_mul(gate_up)
    assert torch.equal(silu_mul(gate_up[3:4]), whole[3:4])
    gate_up[1, 2] = float("nan")
    plain = [activate(gate_up, name)[:, :16] for name in get_args(Activation)]
    gated = silu_mul(gate_up), gelu_mul(gate_up), gelu_mul(gate_up, tanh=False), clamped_swiglu(gate_up)
    for found in (*gated, *plain):
        assert found[1, 2].isnan()
        assert found[[0, 2, 3, 4]].isfinite().all()
