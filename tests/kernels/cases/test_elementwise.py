"""Norms, activations, embedding, rotary and the writes of the cache, against their references."""

from typing import get_args

import pytest
import torch
from closeness import DTYPES, assert_close
from penstock_kernels import (
    NormOfHeads,
    activate,
    apply_rotary,
    clamped_swiglu,
    copy_blocks,
    embedding,
    gate_by_sigmoid,
    gelu_mul,
    layer_norm,
    reference,
    rms_norm,
    rotary_table,
    rotate_and_store,
    rotate_and_store_latents,
    silu_mul,
    store_kv,
    write_runs,
)
from penstock_kernels.base.activation import Activation
from penstock_kernels.base.destination import Destination


def _double(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [None if tensor is None else tensor.double() for tensor in tensors]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "half"), [(0, 4), (1, 1), (3, 48), (70, 64)])
def test_rotary_table(count: int, half: int, dtype: torch.dtype, device: torch.device) -> None:
    """Also of positions whose angles have hundreds of thousands of turns."""
    positions = torch.arange(count, device=device) * 40_011
    frequencies = 10_000.0 ** -torch.linspace(0, 1, half, device=device)
    found = rotary_table(positions, frequencies, 1.3, dtype)
    for one, other in zip(found, reference.rotary_table(positions, frequencies, 1.3, dtype), strict=True):
        assert one.dtype == dtype
        assert torch.allclose(one.float(), other.float(), atol=2.6 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "dim"), [(0, 64), (1, 63), (3, 80), (63, 128), (2, 5000)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm(
    num_rows: int, dim: int, with_residual: bool, dtype: torch.dtype, device: torch.device
) -> None:
    x, weight = torch.randn(num_rows, dim, device=device).to(dtype), torch.randn(dim, device=device).to(dtype)
    residual = torch.randn_like(x) if with_residual else None
    summed = x if residual is None else residual + x
    expected = reference.rms_norm(summed.double(), weight.double(), 1e-5)
    assert_close(rms_norm(x, weight, 1e-5, residual), expected)
    if residual is not None:
        assert torch.equal(residual, summed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_of_heads_inside_a_projection(dtype: torch.dtype, device: torch.device) -> None:
    heads = torch.randn(5, 9, 80, device=device).to(dtype)
    weight = torch.randn(6, 80, device=device).to(dtype)
    expected = reference.rms_norm(heads[:, :6].double(), weight.double(), 1e-6)
    assert_close(rms_norm(heads[:, :6], weight, 1e-6), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_with_weights_around_zero(dtype: torch.dtype, device: torch.device) -> None:
    x, weight = torch.randn(3, 100, device=device).to(dtype), torch.randn(100, device=device).to(dtype)
    expected = reference.rms_norm(x.double(), weight.double() + 1, 1e-6)
    assert_close(rms_norm(x, weight, 1e-6, weight_offset=1.0), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "dim"), [(1, 63), (5, 1000)])
def test_layer_norm(num_rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
    x = (torch.randn(num_rows, dim, device=device) + 3).to(dtype)
    residual = torch.randn_like(x)
    weight, bias = (torch.randn(dim, device=device).to(dtype) for _ in range(2))
    expected = reference.layer_norm((x + residual).double(), weight.double(), bias.double(), 1e-5)
    assert_close(layer_norm(x, weight, bias, 1e-5, residual), expected, slack=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_of_heads_without_bias(dtype: torch.dtype, device: torch.device) -> None:
    heads = (torch.randn(5, 9, 80, device=device) + 3).to(dtype)
    weight = torch.randn(6, 80, device=device).to(dtype)
    exact = heads[:, :6].double()
    centered = exact - exact.mean(-1, keepdim=True)
    expected = centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(layer_norm(heads[:, :6], weight, None, 1e-5), expected, slack=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_of_heads_with_a_bias_each(dtype: torch.dtype, device: torch.device) -> None:
    heads = (torch.randn(5, 9, 80, device=device) + 3).to(dtype)
    weight, bias = torch.randn(2, 6, 80, device=device).to(dtype)
    expected = reference.layer_norm(heads[:, :6].double(), weight.double(), bias.double(), 1e-5)
    assert_close(layer_norm(heads[:, :6], weight, bias, 1e-5), expected, slack=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "dim"), [(0, 8), (1, 63), (3, 1000)])
def test_activations(num_rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
    x = 3 * torch.randn(num_rows, dim, device=device).to(dtype)
    for name in get_args(Activation):
        assert_close(activate(x, name), reference.activate(x.double(), name))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "dim"), [(0, 8), (1, 63), (3, 1000), (2, 1500)])
def test_gated_activations(num_rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
    gate_up = 3 * torch.randn(num_rows, 2 * dim, device=device).to(dtype)
    exact = gate_up.double()
    assert_close(silu_mul(gate_up), reference.silu_mul(exact))
    assert_close(gelu_mul(gate_up), reference.gelu_mul(exact))
    assert_close(gelu_mul(gate_up, tanh=False), reference.gelu_mul(exact, tanh=False))
    assert_close(clamped_swiglu(gate_up), reference.clamped_swiglu(exact))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "dim"), [(0, 8), (1, 63), (3, 1500)])
def test_gates(num_rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
    x, beside = torch.randn(2, num_rows, 2 * dim, device=device).to(dtype)
    for gates in (beside[:, dim:], beside[:, :1]):
        found = x[:, :dim].contiguous()
        expected = reference.gate_by_sigmoid(found.double(), gates.double())
        assert gate_by_sigmoid(found, gates) is found
        assert_close(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_of_a_part_of_the_vocabulary(dtype: torch.dtype, device: torch.device) -> None:
    weight = torch.randn(50, 63, device=device).to(dtype)
    ids = torch.tensor([0, 99, 100, 149, 150, 120], device=device)
    assert torch.equal(embedding(ids, weight, first=100), reference.embedding(ids, weight, first=100))
    assert torch.equal(embedding(ids % 50, weight), weight[ids % 50])
    assert embedding(ids[:0], weight).shape == (0, 63)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "rotary_dim"), [(64, 64), (80, 80), (80, 32), (256, 128)])
def test_rotary_of_heads_inside_a_projection(
    dim: int, rotary_dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    heads = torch.randn(9, 5, dim, device=device).to(dtype)
    cos, sin = (torch.randn(9, rotary_dim, device=device).to(dtype) for _ in range(2))
    expected = reference.apply_rotary(heads[:, :3].double(), cos.double(), sin.double())
    assert_close(apply_rotary(heads[:, :3], cos, sin), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [0, 1, 11])
@pytest.mark.parametrize(
    ("dim", "rotary_dim", "offset"), [(64, 64, None), (80, 80, 0.0), (80, 32, 0.0), (80, 32, 1.0)]
)
def test_rotate_and_store(
    num_tokens: int,
    dim: int,
    rotary_dim: int,
    offset: float | None,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    heads = torch.randn(num_tokens, 4 + 2 * 2, dim, device=device).to(dtype)
    cos, sin = (torch.randn(num_tokens, rotary_dim, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(6, dim, device=device).to(dtype)
    norm = None if offset is None else NormOfHeads(weight, 1e-6, offset)
    caches = [torch.zeros(3, 16, 2, dim, device=device, dtype=dtype) for _ in range(2)]
    exact = [cache.double() for cache in caches]
    cache_positions = torch.randperm(48, device=device)[:num_tokens]
    query = rotate_and_store(heads, cos, sin, caches[0], caches[1], cache_positions, norm)
    target = Destination(exact[0], exact[1], cache_positions)
    exact_norm = None if norm is None else norm._replace(weight=weight.double())
    expected = reference.rotate_and_store(heads.double(), cos.double(), sin.double(), exact_norm, target)
    assert_close(query, expected)
    assert_close(caches[0], exact[0])
    assert torch.equal(caches[1].double(), exact[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [0, 1, 11])
@pytest.mark.parametrize(
    ("rank", "rope", "nope", "rotates"), [(512, 64, 128, True), (20, 6, 10, True), (20, 6, 10, False)]
)
def test_rotate_and_store_latents(
    num_tokens: int, rank: int, rope: int, nope: int, rotates: bool, dtype: torch.dtype, device: torch.device
) -> None:
    query = torch.randn(num_tokens, 3, nope + rope, device=device).to(dtype)
    down = torch.randn(num_tokens, 5 + rank + rope, device=device).to(dtype)[:, 5:]
    angles = [torch.randn(num_tokens, rope, device=device).to(dtype) for _ in range(2)]
    cos, sin = angles if rotates else (None, None)
    weight = torch.randn(rank, device=device).to(dtype)
    cache = torch.zeros(3, 16, 1, rank + rope, device=device, dtype=dtype)
    exact, expected = cache.double(), query.double()
    cache_positions = torch.randperm(48, device=device)[:num_tokens]
    rotate_and_store_latents(query, down, (weight, 1e-6), cos, sin, cache, cache_positions)
    norm = (weight.double(), 1e-6)
    cos, sin = [part.double() for part in angles] if rotates else (None, None)
    reference.rotate_and_store_latents(expected, down.double(), norm, cos, sin, exact, cache_positions)
    assert_close(query, expected)
    assert_close(cache, exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotate_and_store_into_fp8(dtype: torch.dtype, device: torch.device) -> None:
    heads = torch.randn(5, 4, 64, device=device).to(dtype)
    cos, sin = (torch.randn(5, 64, device=device).to(dtype) for _ in range(2))
    caches = [torch.zeros(2, 16, 1, 64, device=device, dtype=torch.float8_e4m3fn) for _ in range(2)]
    cache_positions = torch.randperm(32, device=device)[:5]
    rotate_and_store(heads, cos, sin, caches[0], caches[1], cache_positions, key_scale=0.5, value_scale=0.25)
    key, value = (
        reference.apply_rotary(heads[:, 2:3].double(), cos.double(), sin.double()),
        heads[:, 3:].double(),
    )
    assert_close(
        caches[0].flatten(0, 1).float()[cache_positions].to(dtype),
        (key / 0.5),
        slack=40 if dtype != torch.float32 else 2e4,
    )
    assert torch.equal(
        caches[1].flatten(0, 1).view(torch.uint8)[cache_positions],
        (value / 0.25).float().to(torch.float8_e4m3fn).view(torch.uint8),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_store_kv_writes_its_positions_only(dtype: torch.dtype, device: torch.device) -> None:
    heads = torch.randn(5, 9, 80, device=device).to(dtype)
    found = [torch.zeros(2, 16, 3, 80, device=device, dtype=dtype) for _ in range(2)]
    expected = [cache.clone() for cache in found]
    cache_positions = torch.randperm(32, device=device)[:5]
    store_kv(heads[:, 3:6], heads[:, 6:], found[0], found[1], cache_positions)
    reference.store_kv(heads[:, 3:6], heads[:, 6:], Destination(expected[0], expected[1], cache_positions))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    store_kv(heads[:0, :3], heads[:0, :3], found[0], found[1], cache_positions[:0])
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_store_kv_into_fp8_keeps_what_is_too_large_finite(dtype: torch.dtype, device: torch.device) -> None:
    heads = torch.randn(5, 4, 80, device=device).to(dtype)
    heads[2, 1, 7], heads[3, 2, 0] = 1000.0, -1000.0
    found = [torch.zeros(2, 16, 2, 80, device=device, dtype=torch.float8_e4m3fn) for _ in range(2)]
    expected = [cache.clone() for cache in found]
    cache_positions = torch.randperm(32, device=device)[:5]
    store_kv(heads[:, :2], heads[:, 2:], found[0], found[1], cache_positions, key_scale=0.5, value_scale=2.0)
    reference.store_kv(
        heads[:, :2], heads[:, 2:], Destination(expected[0], expected[1], cache_positions, 0.5, 2.0)
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    key, value = (cache.flatten(0, 1).float()[cache_positions] for cache in found)
    assert key[2, 1, 7] == 448
    assert value[3, 0, 0] == -448


@pytest.mark.parametrize("dim", [5, 80])
def test_copy_blocks(dim: int, device: torch.device) -> None:
    pool = torch.randn(2, 2, 5, 16, 1, dim, device=device).to(torch.bfloat16)
    expected = pool.clone()
    sources, targets = torch.tensor([[0, 0, 4], [1, 2, 3]], device=device)
    copy_blocks(pool, sources, targets)
    reference.copy_blocks(expected, sources, targets)
    assert torch.equal(pool, expected)
    copy_blocks(pool[:0], sources, targets)  # of a model without attention


RUNS: dict[str, list[tuple[int, int]]] = {
    "none": [],
    "one": [(7, 1)],
    "empty ones between": [(5, 0), (40, 3), (0, 0), (41, 0)],
    "side by side": [(10, 4), (14, 63), (0, 10), (77, 1)],
    "long among short": [(3, 1100), (1200, 2), (0, 3), (1202, 513)],
}


@pytest.mark.parametrize("slack", [0, 600])
@pytest.mark.parametrize("places", RUNS.values(), ids=RUNS)
def test_write_runs_writes_its_places_only(
    places: list[tuple[int, int]], slack: int, device: torch.device
) -> None:
    lengths = [length for _, length in places]
    values = torch.randint(-(2**31), 2**31 - 1, (sum(lengths) + 2,), dtype=torch.int32)
    expected = torch.full((1716,), -7, dtype=torch.int32)
    target, runs = expected.to(device), []
    for number, (place, length) in enumerate(places):
        first = sum(lengths[:number])
        expected[place : place + length] = values[first : first + length]
        runs.append((first, place, length))
    on_device = torch.tensor(runs, dtype=torch.int32, device=device).view(-1, 3)
    write_runs(target, values.to(device), on_device, max(lengths, default=0) + slack)
    assert target.tolist() == expected.tolist()
