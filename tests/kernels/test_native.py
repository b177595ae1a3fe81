"""The ops in C: every width of vectors, and the same bits for a row whatever else is computed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest
import torch
from penstock_kernels import (
    AdapterRows,
    AdapterTable,
    AdapterWeights,
    AttentionArguments,
    AttentionSpans,
    NormOfHeads,
    Scoring,
    activate,
    all_finite,
    clamped_swiglu,
    embedding,
    find_decodes,
    find_spans,
    gate_by_sigmoid,
    gelu_mul,
    layer_norm,
    linear,
    paged_attention,
    reference,
    rms_norm,
    rotary_table,
    rotate_and_store,
    silu_mul,
)
from penstock_kernels.base.activation import Activation
from penstock_kernels.base.destination import Destination
from penstock_kernels.native import activation as native_activation
from penstock_kernels.native import adapters as native_adapters
from penstock_kernels.native import attention as native
from penstock_kernels.native import linear as native_linear
from penstock_kernels.native import norm as native_norm
from penstock_kernels.native import rotary as native_rotary
from penstock_kernels.native import store_kv as native_store_kv
from penstock_kernels.native.library import library

_LEN, _BLOCK = 300, 16


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Sequence:
    """A prompt of _LEN tokens whose keys and values are in scattered blocks of a cache."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, dim: int, dtype: torch.dtype = torch.float32
    ) -> None:
        shape = (40, _BLOCK, num_kv_heads, dim)
        self.key, self.value = (torch.randn(shape).to(dtype) for _ in range(2))
        self.query = torch.randn(_LEN, num_heads, dim).to(dtype)
        self.table = torch.randperm(40)[: -(-_LEN // _BLOCK)].int()

    def attend(
        self, *rows: tuple[int, int], window: int | None = None, chunk: int | None = None
    ) -> list[torch.Tensor]:
        """Each (start, end) as a span of one call; the results of each."""
        lens = tuple(end - start for start, end in rows)
        tables = self.table.repeat(len(rows), 1)
        spans = AttentionSpans(lens, tuple(end for _, end in rows), tables, _BLOCK, unbatched=True)
        query = torch.cat([self.query[start:end] for start, end in rows])
        found = paged_attention(query, self.key, self.value, spans, Scoring(0.2, window, chunk=chunk))
        return list(torch.split(found, list(lens)))


def test_it_is_built() -> None:
    assert library() is not None, "no C compiler when penstock-kernels was installed?"


@pytest.mark.parametrize("reach", [{}, {"window": 50}, {"chunk": 50}, {"chunk": 128}])
@pytest.mark.parametrize("heads", [(4, 4), (7, 1), (6, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_batch(
    heads: tuple[int, int], dtype: torch.dtype, reach: dict[str, int]
) -> None:
    sequence = Sequence(*heads, 48, dtype)
    [whole] = sequence.attend((0, _LEN), **reach)
    for start, end in ((0, 1), (63, 64), (100, 133), (171, 300), (299, 300)):
        [alone] = sequence.attend((start, end), **reach)
        assert torch.equal(alone, whole[start:end])
        in_batch = sequence.attend((5, 70), (start, end), (250, 251), **reach)[1]
        assert torch.equal(in_batch, alone)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dim", [12, 40, 64, 80])
@pytest.mark.parametrize("slopes", [None, [0.5, 0.25, 0.1, 0.05, 0.02, 0.01]], ids=["flat", "slopes"])
@pytest.mark.parametrize(
    "options",
    [{}, {"window": 33, "soft_cap": 3.0}, {"chunk": 48}],
    ids=["plain", "window and soft cap", "chunks"],
)
def test_every_width_of_vectors_equals_the_reference(
    lanes: int, dim: int, options: dict[str, Any], slopes: list[float] | None
) -> None:
    sequence = Sequence(6, 3, dim)
    spans = AttentionSpans((_LEN - 7,), (_LEN,), sequence.table[None], _BLOCK)
    scoring = Scoring(0.2, **options, slopes=None if slopes is None else torch.tensor(slopes))
    arguments = AttentionArguments(sequence.query[7:], sequence.key, sequence.value, spans, scoring)
    found = native.paged_attention(arguments, max_lanes=lanes)
    expected = reference.paged_attention(arguments)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("context", [32, 77, 140])
def test_a_tree_of_any_form_equals_the_reference(lanes: int, dtype: torch.dtype, context: int) -> None:
    """Of 32 tokens, from the first position on, across the end of a tile, and where heads fill more than one tile."""
    sequence = Sequence(6, 2, 48, dtype)
    tree = torch.randint(-(2**31), 2**31, (32,)).int() | 1
    spans = AttentionSpans((32,), (context,), sequence.table[None], _BLOCK, tree=tree)
    arguments = AttentionArguments(sequence.query[:32], sequence.key, sequence.value, spans, Scoring(0.2))
    found = native.paged_attention(arguments, max_lanes=lanes)
    atol = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, reference.paged_attention(arguments), atol=atol, rtol=1e-2)
    causal = replace(arguments, spans=replace(spans, tree=None))
    all_seen = replace(arguments, spans=replace(spans, tree=torch.full_like(tree, -1)))
    plain = native.paged_attention(causal, max_lanes=lanes)
    assert torch.equal(plain, native.paged_attention(all_seen, max_lanes=lanes))
    assert not torch.allclose(plain, found, atol=1e-1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_query_that_is_not_finite_is_not_hidden(bad: float) -> None:
    sequence = Sequence(2, 2, 16)
    sequence.query[120, 1, 3] = bad
    [found] = sequence.attend((100, 130))
    assert found[20, 1].isnan().all()
    assert found[19].isfinite().all()
    assert found[20, 0].isfinite().all()


def test_threads_change_nothing() -> None:
    sequence = Sequence(4, 4, 64)
    [one], threads = sequence.attend((0, _LEN)), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        [three] = sequence.attend((0, _LEN))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, three)


@pytest.mark.usefixtures("has_amx")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 100), (96, 37), (64, 16), (544, 200), (20, 3), (12, 1)])
def test_a_product_has_the_same_bits_in_any_batch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    length, columns = shape
    x, weight, bias = (torch.randn(size).to(dtype) for size in ((150, length), (columns, length), (columns,)))
    whole = linear(x, weight, bias, invariant=True)
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(whole.double(), expected, atol=2e-5 * length, rtol=1e-2)
    for rows in (slice(0, 1), slice(7, 10), slice(3, 9), slice(3, 39), slice(4, 20), slice(60, 131)):
        assert torch.equal(linear(x[rows], weight, bias, invariant=True), whole[rows])


@pytest.mark.usefixtures("has_amx")
@pytest.mark.parametrize("lanes", [0, 4, 8])
@pytest.mark.parametrize(("length", "columns"), [(1024, 75), (1032, 75), (2560, 779)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_of_many_rows_has_the_bits_of_few(
    lanes: int, length: int, columns: int, dtype: torch.dtype
) -> None:
    """Also of rows that are taken in parts, and of columns that two threads take in the largest shares."""
    x, weight = torch.randn(303, length).to(dtype), torch.randn(columns, length + 40).to(dtype)[:, :length]
    whole = native_linear.multiply(x, (weight,), None, lanes)
    expected = x.double() @ weight.double().T
    torch.testing.assert_close(whole.double(), expected, atol=1e-2, rtol=1e-2)
    few = [slice(20, 20 + count) for count in range(1, 10)]
    for rows in (*few, slice(90, 93), slice(94, 101), slice(5, 24), slice(1, 98), slice(7, 300)):
        assert torch.equal(native_linear.multiply(x[rows], (weight,), None, lanes), whole[rows])


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_width_of_vectors_multiplies(lanes: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(71, 64).to(dtype), torch.randn(70, 80).to(dtype)[:, :64]
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    for num_rows in (1, 2, 3, 9, 71):
        found = native_linear.multiply(x[:num_rows], (weight,), None, lanes)
        expected = (x[:num_rows].double() @ weight.T.double()).to(dtype)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", [(16, 16), (1, 7), (0, 3000)])
def test_every_width_of_vectors_adapts(lanes: int, dtype: torch.dtype, ranks: tuple[int, int]) -> None:
    counts, length = (70, 93), 64
    first = torch.tensor([0 if ranks[0] else -1] * counts[0] + [ranks[0]] * counts[1], dtype=torch.int32)
    up = torch.zeros(max(ranks), sum(counts))
    up[: ranks[0], : counts[0]] = torch.randn(ranks[0], counts[0])
    up[: ranks[1], counts[0] :] = torch.randn(ranks[1], counts[1])
    down = torch.randn(sum(ranks), length) / sum(ranks)
    vectors = torch.randn(2, sum(counts))
    table = AdapterTable(2, torch.device("cpu"))
    table.place(0, AdapterWeights(down.to(dtype), up.to(dtype), first))
    table.place(1, AdapterWeights(down.to(dtype), up.to(dtype), first, vectors[0], vectors[1]))
    rows, x = AdapterRows(torch.tensor([1, 0, -1])), torch.randn(3, length).to(dtype)
    output = torch.randn(3, sum(counts)).to(dtype)
    expected = reference.add_adapters(output.clone(), x, rows, table)
    found = native_adapters.add_adapters(output, x, rows, table, lanes)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.usefixtures("has_amx")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 3])
def test_weights_that_lie_apart_multiply_like_one(dtype: torch.dtype, threads: int) -> None:
    x, weight, bias = (torch.randn(size).to(dtype) for size in ((5, 64), (2401, 64), (2401,)))
    parts = tuple(part.clone() for part in torch.split(weight, [1, 31, 33, 2336]))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        joined = native_linear.multiply(x, (weight,), bias)
        assert torch.equal(native_linear.multiply(x, parts, bias), joined)
        invariant = linear(x, parts, bias, invariant=True)
        assert torch.equal(invariant, linear(x, weight, bias, invariant=True))
        torch.testing.assert_close(linear(x, parts, bias), linear(x, weight, bias), atol=1e-5, rtol=1e-2)
    finally:
        torch.set_num_threads(before)


def test_a_product_with_what_is_not_finite_shows_it() -> None:
    x, weight = torch.randn(3, 32), torch.randn(5, 32)
    x[1, 4] = float("nan")
    found = linear(x, weight)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="against weight"):
        linear(torch.zeros(2, 3), torch.zeros(4, 5))


def test_a_weight_of_another_type_is_refused() -> None:
    heads, angles, cache = (
        torch.zeros(1, 3, 16).bfloat16(),
        torch.zeros(1, 16).bfloat16(),
        torch.zeros(1, 4, 1, 16),
    )
    given = (heads, angles, angles, cache.bfloat16(), cache.bfloat16(), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"dtypes differ: heads torch\.bfloat16, norm_weight torch\.float32"):
        rotate_and_store(*given, NormOfHeads(torch.ones(2, 16)))


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
def test_the_exact_gelu_is_exact_far_below_zero(lanes: int) -> None:
    """Where results are small, each has as many right digits as large ones have."""
    x = torch.linspace(-9, 9, 4000).view(2, 2000)
    found = native_activation.activate(x, "gelu", lanes).double()
    exact = x.double() * torch.special.erfc(-x.double() / 2**0.5) / 2
    assert ((found - exact) / exact).abs().max() < 1e-5
    gates = torch.cat([x, torch.ones_like(x)], dim=1)
    assert torch.equal(native_activation.gelu_mul(gates, False, lanes).double(), found)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_embedding_has_zeros_for_tokens_of_others(dtype: torch.dtype) -> None:
    weight, ids = torch.randn(10, 7).to(dtype), torch.tensor([5, 4, 14, 15, 9])
    expected = torch.stack(
        [weight[0], torch.zeros(7).to(dtype), weight[9], torch.zeros(7).to(dtype), weight[4]]
    )
    assert torch.equal(embedding(ids, weight, 5), expected)
    assert torch.equal(embedding(ids, weight, 5), reference.embedding(ids, weight, 5))
    assert torch.equal(embedding(ids[:0], weight, 5), expected[:0])


@pytest.mark.parametrize("count", [0, 1, 5, 900])
def test_a_rotary_table_equals_its_reference(count: int) -> None:
    positions = torch.arange(count) * 137
    inv_freq = 1.0 / 10000.0 ** (torch.arange(0, 24, 2) / 24)
    found = rotary_table(positions, inv_freq, 1.3)
    for ours, expected in zip(found, reference.rotary_table(positions, inv_freq, 1.3), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-6)
    if count > 4:
        assert torch.equal(rotary_table(positions[4:5], inv_freq, 1.3)[1], found[1][4:5])


def test_decodes_are_found_where_the_rows_have_them() -> None:
    rows = torch.randint(0, 99, (7, 40), dtype=torch.int32)
    block_table, tokens = rows[:, :9], rows[:, 10:40]
    slots, positions = torch.tensor([4, 6, 0, 6]), torch.tensor([29, 0, 7, 0])
    given = (slots, positions, tokens, block_table, 4, 6)
    found = find_decodes(*given)
    for ours, expected in zip(found[:4], reference.find_decodes(*given)[:4], strict=True):
        assert torch.equal(ours, expected)
        assert ours.dtype == expected.dtype
    assert found.query_starts is None
    assert found.token_ids.tolist() == [tokens[4, 29], tokens[6, 0], tokens[0, 7], tokens[6, 0]]
    assert found.cache_positions.tolist()[2] == block_table[0, 1] * 4 + 3
    assert found.context_lens.tolist() == [30, 0, 8, 0], "the spare row has no context"
    with pytest.raises(ValueError, match="int64"):
        find_decodes(slots.int(), positions.int(), tokens, block_table, 4, 6)


@pytest.mark.parametrize("lens", [[1], [3, 0, 1, 7], [0, 0, 5], [0], [2, 1] * 3])
@pytest.mark.parametrize("num_more", [0, 1, 9])
def test_rows_of_spans_are_found(lens: list[int], num_more: int) -> None:
    rows = torch.randint(0, 99, (7, 40), dtype=torch.int32)
    block_table, tokens = rows[:, :9], rows[:, 10:40]
    slots, starts = torch.randperm(6)[: len(lens)], torch.randint(0, 20, (len(lens),))
    given = (slots, starts, torch.tensor(lens), sum(lens) + num_more, tokens, block_table, 4, 6)
    for ours, expected in zip(find_spans(*given), reference.find_spans(*given), strict=True):
        assert torch.equal(ours, expected)
        assert ours.dtype == expected.dtype


@pytest.mark.parametrize("find", [find_decodes, reference.find_decodes])
def test_rows_that_follow_each_other_are_joined(find: Callable[..., Any]) -> None:
    rows = torch.randint(0, 99, (7, 40), dtype=torch.int32)
    block_table, tokens = rows[:, :9], rows[:, 10:40]
    # Ten of slot 2, of which eight are a span; two of slot 0 that do not follow each other, two of slot 3, two spare.
    slots = torch.tensor([2] * 10 + [0, 0, 3, 3, 6, 6])
    positions = torch.tensor([*range(5, 15), 4, 6, 7, 8, 0, 0])
    given = (slots, positions, tokens, block_table, 4, 6)
    found, apart = find(*given, 8), find(*given)
    assert torch.equal(found.token_ids, apart.token_ids)
    assert torch.equal(found.cache_positions, apart.cache_positions)
    assert found.query_starts.tolist() == [0, 8, 10, 11, 12, 14, 15, *[16] * 10]
    assert found.context_lens.tolist() == [13, 15, 5, 7, 9, 0, 0, *[0] * 9]
    assert found.query_starts.dtype == found.context_lens.dtype == torch.int32
    assert torch.equal(found.block_tables[:7], block_table[[2, 2, 0, 0, 3, 6, 6]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_a_number_that_is_not_finite_is_found_wherever_it_is(dtype: torch.dtype, bad: float) -> None:
    x = torch.full((7, 90_001), torch.finfo(dtype).max, dtype=dtype)
    assert all_finite(x)
    assert all_finite(-x)
    for row, column in ((0, 0), (3, 89_999), (6, 90_000)):
        x[row, column] = bad
        assert not all_finite(x)
        assert not all_finite(x[row])
        assert all_finite(x[:, :column]), "a window of columns, which ends before"
        assert not reference.all_finite(x)
        x[row, column] = 0
    assert all_finite(x[:0])
    assert all_finite(torch.zeros(3, dtype=torch.float64))
