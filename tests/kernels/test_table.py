"""The table of implementations: it has a row for every op, its implementations agree, and it makes the right choice."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import penstock_kernels
import pytest
import torch
from penstock_kernels import (
    AdapterRows,
    AdapterTable,
    AttentionArguments,
    AttentionSpans,
    Decay,
    DrawParams,
    EmbeddingTable,
    IntGroups,
    LatentArguments,
    RecurrentSpans,
    Scoring,
    table,
)
from penstock_kernels.base.destination import Destination
from penstock_kernels.base.seen_rows import SeenRows
from penstock_kernels.native.library import library

ROWS: dict[str, table.Row[..., Any]] = {
    name: row for name, row in vars(table).items() if isinstance(row, table.Row)
}
BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


def _ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape).to(dtype)


def _ids(*ids: int) -> torch.Tensor:
    return torch.tensor(ids)


def _attention(dtype: torch.dtype, cache_dtype: torch.dtype, dim: int = 64, tree: bool = False) -> Any:
    cache = _ones(1, 4, 2, dim, dtype=cache_dtype)
    bits = torch.ones(1, dtype=torch.int32) if tree else None
    spans = AttentionSpans((1,), (1,), torch.zeros(1, 1, dtype=torch.int32), 4, tree=bits)
    return AttentionArguments(_ones(1, 4, dim, dtype=dtype), cache, cache, spans, Scoring(1.0))


def _rotation(dtype: torch.dtype, cache_dtype: torch.dtype, dim: int = 64) -> tuple[Any, ...]:
    cache, angles = _ones(1, 4, 2, dim, dtype=cache_dtype), _ones(1, dim, dtype=dtype)
    return _ones(1, 8, dim, dtype=dtype), angles, angles, None, Destination(cache, cache, _ids(0))


def _stored(dtype: torch.dtype, cache_dtype: torch.dtype) -> tuple[Any, ...]:
    rows, cache = _ones(1, 2, 8, dtype=dtype), _ones(1, 4, 2, 8, dtype=cache_dtype)
    return rows, rows, Destination(cache, cache, _ids(0))


def _latents(dtype: torch.dtype, rank: int) -> LatentArguments:
    ups = _ones(2, rank, 12, dtype=dtype), _ones(2, 5, rank, dtype=dtype)
    spans = AttentionSpans((1,), (1,), torch.zeros(1, 1, dtype=torch.int32), 4)
    return LatentArguments(
        _ones(1, 2, 20, dtype=dtype), _ones(1, 4, 1, rank + 8, dtype=dtype), *ups, spans, 1.0
    )


def _indexed(dtype: torch.dtype = torch.float32, dim: int = 8) -> tuple[Any, ...]:
    seen = SeenRows(_ids(0).int(), _ids(1).int())
    query, cache = _ones(1, 2, dim, dtype=dtype), _ones(1, 4, 1, dim, dtype=dtype)
    return query, _ones(1, 2), cache, _ids(0).int()[None], seen, 1, _ids(0, 0, 0).int()[None]


def _stored_latents(dtype: torch.dtype, rank: int) -> tuple[Any, ...]:
    angles, down = _ones(1, 8, dtype=dtype), _ones(1, rank + 8, dtype=dtype)
    norm = _ones(rank, dtype=dtype), 1e-6
    return (
        _ones(1, 2, 20, dtype=dtype),
        down,
        norm,
        angles,
        angles,
        _ones(1, 4, 1, rank + 8, dtype=dtype),
        _ids(0),
    )


def _draw_params(dtype: torch.dtype) -> DrawParams:
    numbers = [_ones(2, dtype=dtype) for _ in range(4)]
    return DrawParams(numbers[0], torch.ones(2, dtype=torch.int32), *numbers[1:], *[_ids(1, 2)] * 2)


def _norm(dtype: torch.dtype, *shape: int) -> tuple[Any, ...]:
    return _ones(*shape, dtype=dtype), _ones(*shape[1:], dtype=dtype), 1e-5, None, 0.0


def _experts(dtype: torch.dtype) -> tuple[Any, ...]:
    weights = _ones(3, 32, 16, dtype=dtype), _ones(3, 16, 16, dtype=dtype)
    return _ones(2, 16, dtype=dtype), _ids(0, 1)[:, None], _ones(2, 1), *weights, None, None, None, False


def _product(dtype: torch.dtype, invariant: bool, length: int = 64) -> tuple[Any, ...]:
    return _ones(2, length, dtype=dtype), (_ones(3, length, dtype=dtype),), None, invariant


def _groups(rows: int, columns: int) -> IntGroups:
    codes = torch.zeros(rows, columns // 2, dtype=torch.uint8)
    return IntGroups(codes, _ones(rows, 1), None, columns, bits=4, group_size=columns)


def _quantized_experts() -> tuple[Any, ...]:
    weights = ((_groups(8, 16),),) * 2, (_groups(16, 4),) * 2
    return _ones(2, 16), _ids(0, 1)[:, None], _ones(2, 1), *weights, None, None, None, False


def _adapted(dtype: torch.dtype, length: int = 64) -> tuple[Any, ...]:
    table = AdapterTable(1, torch.device("cpu"))
    return _ones(2, 3, dtype=dtype), _ones(2, length, dtype=dtype), AdapterRows(_ids(0, -1)), table


def _adapted_embedding(dtype: torch.dtype) -> tuple[Any, ...]:
    table = EmbeddingTable(1, torch.device("cpu"))
    return _ones(2, 3, dtype=dtype), _ids(0, 1), AdapterRows(_ids(0, -1)), table, 0


_SPANS = RecurrentSpans(_ids(0), torch.ones(1, dtype=torch.bool), (1,))
_DECAY = Decay(_ones(2), _ones(2))


def _conv(dtype: torch.dtype, channels: int) -> tuple[Any, ...]:
    return _ones(1, channels, dtype=dtype), _ones(channels, 4), None, _ones(1, 3, channels), _SPANS, True


def _delta(dtype: torch.dtype, dim: int) -> tuple[Any, ...]:
    heads = _ones(1, 2, dim, dtype=dtype)
    return heads, heads, heads, _ones(1, 2), _ones(1, 2), _DECAY, _ones(1, 2, dim, dim), _SPANS


def _space(dtype: torch.dtype, dim: int) -> tuple[Any, ...]:
    heads = _ones(1, 2, dim, dtype=dtype)
    return heads, _ones(1, 2), _DECAY, heads, heads, _ones(2), _ones(1, 2, dim, dim), _SPANS


def _selective(dtype: torch.dtype, size: int) -> tuple[Any, ...]:
    x, numbers, vector = _ones(1, 8, dtype=dtype), _ones(1, size, dtype=dtype), _ones(8)
    return x, x, vector, _ones(8, size), numbers, numbers, vector, _ones(1, 8, size), _SPANS


def _gated(dtype: torch.dtype, size: int) -> tuple[Any, ...]:
    return _ones(1, 2, size, dtype=dtype), _ones(1, 2 * size, dtype=dtype), _ones(size), 1e-5, False


# On a CPU. What is not here has no function in C.
IN_C: list[tuple[str, tuple[Any, ...]]] = [
    ("rms_norm", _norm(torch.float32, 2, 64)),
    ("rms_norm", _norm(BF16, 2, 64)),
    ("rms_norm", _norm(BF16, 2, 3, 64)),
    ("layer_norm", (_ones(2, 64), _ones(64), None, 1e-5, None)),
    ("layer_norm", (_ones(2, 3, 64), _ones(3, 64), _ones(3, 64), 1e-5, None)),
    ("activate", (_ones(2, 12, dtype=BF16), "relu")),
    ("soft_cap", (_ones(2, 12), 5.0)),
    ("silu_mul", (_ones(2, 64),)),
    ("gelu_mul", (_ones(2, 64), True)),
    ("gelu_mul", (_ones(2, 64), False)),
    ("clamped_swiglu", (_ones(2, 64), 1.0, 1.0)),
    ("linear", _product(torch.float32, invariant=False)),
    ("linear", _product(BF16, invariant=True)),
    ("add_adapters", _adapted(torch.float32)),
    ("add_adapters", _adapted(BF16)),
    ("adapt_embedding", _adapted_embedding(BF16)),
    ("embedding", (_ids(0), _ones(4, 8), 0)),
    ("route", (_ones(2, 4), 2, False)),
    ("grouped_mlp", _experts(torch.float32)),
    ("quantized_linear", (_ones(2, 16), (_groups(4, 16),), None, False)),
    ("quantized_grouped_mlp", _quantized_experts()),
    ("rotary_table", (_ids(1), _ones(4), 1.0)),
    ("apply_rotary", (_ones(1, 2, 64), _ones(1, 64), _ones(1, 64))),
    ("rotate_and_store", _rotation(torch.float32, torch.float32)),
    ("store_kv", _stored(FP16, FP16)),
    ("paged_attention", (_attention(torch.float32, torch.float32),)),
    ("paged_attention", (_attention(BF16, BF16),)),
    ("paged_attention", (_attention(BF16, BF16, dim=512),)),
    ("paged_attention", (_attention(BF16, BF16, tree=True),)),
    ("latent_attention", (_latents(BF16, 16),)),
    ("choose_positions", _indexed(BF16, dim=5)),
    ("rotate_and_store_latents", _stored_latents(torch.float32, 16)),
    ("causal_conv", _conv(BF16, 12)),
    ("gated_delta_rule", _delta(BF16, 12)),
    ("state_space_scan", _space(torch.float32, 12)),
    ("selective_scan", _selective(BF16, 12)),
    ("gate_by_sigmoid", (_ones(2, 12, dtype=BF16), _ones(2, 1, dtype=BF16))),
    ("gated_norm", _gated(BF16, 12)),
    ("find_decodes", (_ids(0), _ids(0), _ids(0)[None], _ids(0)[None], 4, 1, 1)),
    ("find_spans", (_ids(0), _ids(0), _ids(1), 1, _ids(0)[None], _ids(0)[None], 4, 1)),
    ("all_finite", (_ones(3),)),
    ("all_finite", (_ones(3, dtype=FP16),)),
    ("apply_bitmask", (_ones(2, 8), _ids(0), None)),
    ("most_likely", (_ones(2, 8),)),
    ("draw", (_ones(2, 8), _draw_params(torch.float32))),
    ("token_logprobs", (_ones(2, 8), None, 0)),
]
BY_REFERENCE: list[tuple[str, tuple[Any, ...]]] = [
    ("rms_norm", _norm(FP16, 2, 64)),
    ("rms_norm", (_ones(2, 3, 64), _ones(64), 1e-5, None, 0.0)),
    ("rms_norm", _norm(torch.float32, 2, 63)),
    ("layer_norm", (_ones(2, 63), _ones(63), None, 1e-5, None)),
    ("activate", (_ones(2, 10), "relu")),
    ("soft_cap", (_ones(2, 10), 5.0)),
    ("silu_mul", (_ones(2, 64, dtype=FP16),)),
    ("gelu_mul", (_ones(2, 20), False)),
    ("clamped_swiglu", (_ones(2, 64, dtype=FP16), 1.0, 1.0)),
    ("linear", _product(FP16, invariant=False)),
    ("linear", _product(torch.float32, invariant=True, length=63)),
    ("add_adapters", _adapted(FP16)),
    ("add_adapters", _adapted(torch.float32, length=63)),
    ("adapt_embedding", _adapted_embedding(FP16)),
    ("embedding", (_ids(0).int(), _ones(4, 8), 0)),
    ("route", (_ones(2, 4, dtype=FP16), 2, False)),
    ("route_near", (_ones(2, 4), 2, 0.02)),
    ("grouped_mlp", _experts(FP16)),
    ("fused_linear", (_ones(2, 16), _ones(4, 16), None, None, True)),
    ("quantized_linear", (_ones(2, 16, dtype=FP16), (_groups(4, 16),), None, False)),
    ("quantized_grouped_mlp", (_ones(2, 16, dtype=FP16), *_quantized_experts()[1:])),
    ("apply_rotary", (_ones(1, 2, 64), _ones(1, 4), _ones(1, 4))),
    ("rotate_and_store", _rotation(torch.float32, FP8)),
    ("store_kv", _stored(torch.float32, FP8)),
    ("copy_blocks", (_ones(1, 2, 3, 4, 1, 8), _ids(0), _ids(1))),
    ("paged_attention", (_attention(FP16, FP16),)),
    ("paged_attention", (_attention(BF16, FP8),)),
    ("paged_attention", (_attention(BF16, BF16, dim=640),)),
    ("latent_attention", (_latents(FP16, 16),)),
    ("choose_positions", _indexed(FP16)),
    ("choose_positions", _indexed(dim=1025)),
    ("latent_attention", (_latents(BF16, 18),)),
    ("rotate_and_store_latents", _stored_latents(BF16, 18)),
    ("causal_conv", _conv(FP16, 12)),
    ("causal_conv", _conv(BF16, 10)),
    ("gated_delta_rule", _delta(FP16, 12)),
    ("gated_delta_rule", _delta(BF16, 10)),
    ("gated_delta_rule", _delta(BF16, 260)),
    ("state_space_scan", _space(FP16, 12)),
    ("state_space_scan", _space(BF16, 10)),
    ("selective_scan", _selective(FP16, 12)),
    ("selective_scan", _selective(BF16, 10)),
    ("gate_by_sigmoid", (_ones(2, 12, dtype=FP16), _ones(2, 1, dtype=FP16))),
    ("gate_by_sigmoid", (_ones(2, 10), _ones(2, 10))),
    ("gated_norm", _gated(FP16, 12)),
    ("gated_norm", _gated(BF16, 10)),
    ("write_runs", (_ids(0), _ids(0), _ids(0), 1)),
    ("all_finite", (_ones(3, dtype=torch.float64),)),
    ("penalize", (_ones(2, 8), None, 1)),
    ("add_bias", (_ones(2, 8), None, None, None)),
    ("apply_bitmask", (_ones(2, 8), _ids(0).int(), None)),
    ("most_likely", (_ones(0, 8),)),
    ("draw", (_ones(2, 8), _draw_params(torch.float64))),
    ("draw", (_ones(0, 8), _draw_params(torch.float32))),
    ("gumbel", (_ids(1), _ids(1), 8)),
    ("uniform", (_ids(1), 8)),
]
NO_KERNEL = {
    "activate",
    "all_finite",
    "most_likely",
    "route_near",
    "soft_cap",
}


def test_every_op_has_a_row() -> None:
    public = {name: getattr(penstock_kernels, name) for name in penstock_kernels.__all__}
    functions = {name for name, found in public.items() if inspect.isfunction(found)}
    # These functions are questions about an op.
    questions = {"attention_parts_bytes", "captures_choices", "captures_experts", "choice_bytes", "is_fused"}
    questions.add("latent_parts_bytes")
    assert functions - questions == set(ROWS)
    assert public["own_attention"] is table.paged_attention
    assert public["own_latent_attention"] is table.latent_attention
    assert {name for name, row in ROWS.items() if row.gpu is None} == NO_KERNEL
    assert {name for name, row in ROWS.items() if row.native is not None} == {name for name, _ in IN_C}


def test_the_page_names_every_implementation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    lines = re.findall(
        r"^\| `(\w+)` \| (Triton|reference)\b.* \| (C|reference)\b.* \|.*\|$", page, re.MULTILINE
    )
    expected = {
        # Without `invariant`, products are PyTorch's on CUDA.
        (name, "Triton" if row.gpu and name != "linear" else "reference", "C" if row.native else "reference")
        for name, row in ROWS.items()
    }
    assert set(lines) == expected


@pytest.mark.parametrize("name", ROWS)
def test_all_implementations_of_an_op_take_the_same_arguments(name: str) -> None:
    row = ROWS[name]
    expected = list(inspect.signature(row.reference).parameters)
    found = [row.native] if row.native else []
    if row.gpu:
        pytest.importorskip("triton")
        found.append(table.launcher(row.gpu))
    for implementation in found:
        names = list(inspect.signature(implementation).parameters)
        # After those of the op: what only tests give, or what only another implementation does.
        both = min(len(names), len(expected))
        assert names[:both] == expected[:both]
        assert {*names[both:], *expected[both:]} <= {"max_lanes", "multiply"}


@pytest.mark.parametrize(("name", "args"), IN_C)
def test_a_cpu_takes_c_for_what_it_supports(name: str, args: tuple[Any, ...]) -> None:
    assert library() is not None
    assert ROWS[name].choose(*args) is ROWS[name].native


@pytest.mark.parametrize(("name", "args"), BY_REFERENCE)
def test_a_cpu_takes_the_reference_for_all_else(name: str, args: tuple[Any, ...]) -> None:
    assert ROWS[name].choose(*args) is ROWS[name].reference


@pytest.mark.parametrize("name", ROWS)
def test_cuda_takes_the_kernel_and_another_device_the_reference(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("penstock_kernels.gpu.fused_linear.is_faster", lambda *_: True)
    row = ROWS[name]
    on_cuda: Any = SimpleNamespace(
        device=torch.device("cuda"), key_up=torch.empty(1, 512, 1), shape=(1, 1, 256)
    )
    on_mps: Any = SimpleNamespace(device=torch.device("mps"))
    # For a product: it is to be invariant, as only then there is a kernel. For experts: their weights lie alike.
    others: tuple[Any, ...] = (None, None, True) if name == "linear" else ()
    if name == "quantized_grouped_mlp":
        others = (None, None, ((_groups(8, 64),),) * 2, (_groups(64, 64),) * 2)
    assert row.choose(on_cuda, *others) is (table.launcher(row.gpu) if row.gpu else row.reference)
    assert row.choose(on_mps, *others) is row.reference


def test_cuda_takes_the_kernel_for_every_kind_of_scores() -> None:
    pytest.importorskip("triton")
    row = table.paged_attention
    for scoring in (Scoring(1.0, slopes=torch.ones(1)), Scoring(1.0, chunk=4), Scoring(1.0, soft_cap=2.0)):
        given: Any = SimpleNamespace(device=torch.device("cuda"), scoring=scoring)
        assert row.choose(given) is table.launcher("attention.paged_attention")


def test_cuda_leaves_latents_that_no_tile_holds_to_the_reference() -> None:
    given: Any = SimpleNamespace(device=torch.device("cuda"), key_up=torch.empty(1, 513, 1))
    assert table.latent_attention.choose(given) is table.latent_attention.reference
    wide: Any = SimpleNamespace(device=torch.device("cuda"), shape=(1, 2, 257))
    index: Any = table.choose_positions
    assert index.choose(wide) is index.reference


@pytest.mark.parametrize(
    ("length", "dtype", "key_dim", "by_row", "keeps", "is_kernel"),
    [
        (1, FP16, 256, True, True, True),
        (2, BF16, 128, False, False, True),
        (2, BF16, 132, False, False, False),
        (2, FP16, 128, False, False, False),
        (2, BF16, 128, True, False, True),
        (2, BF16, 132, True, False, False),
        (2, BF16, 128, True, True, False),
        (2, BF16, 128, False, True, False),
    ],
)
def test_cuda_leaves_some_longer_spans_to_the_reference(
    length: int, dtype: torch.dtype, key_dim: int, by_row: bool, keeps: bool, is_kernel: bool
) -> None:
    pytest.importorskip("triton")
    shape, kept = (length, 2, key_dim), _ids(0) if keeps else None
    on_cuda: Any = SimpleNamespace(device=torch.device("cuda"), dtype=dtype, shape=shape)
    spans = RecurrentSpans(_ids(0), torch.ones(1, dtype=torch.bool), (length,), kept)
    step, heads = _ones(length, 2), _ones(*shape)
    others = {
        "gated_delta_rule": (heads, heads, heads if by_row else step, step, _DECAY),
        "state_space_scan": (step, _DECAY, heads, heads, _ones(2)),
    }
    conv = table.causal_conv.choose(on_cuda, step, None, step, spans, False)
    assert (conv is not table.causal_conv.reference) == (length == 1 or not keeps)
    for name in list(others)[: 1 if by_row else 2]:
        chosen = ROWS[name].choose(on_cuda, *others[name], _ones(1, 2, key_dim, key_dim), spans)
        assert (chosen is not ROWS[name].reference) == is_kernel


def test_cuda_leaves_products_that_may_depend_on_the_number_of_rows_to_pytorch() -> None:
    on_cuda: Any = SimpleNamespace(device=torch.device("cuda"))
    assert table.linear.choose(on_cuda, (), None, False) is table.linear.reference


def test_cuda_takes_products_of_few_rows_where_they_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    measured = {"H": {(6, 4): 8}}
    monkeypatch.setattr("penstock_kernels.gpu.fused_linear.MOST_ROWS", measured)
    chip = SimpleNamespace(name="H")
    monkeypatch.setattr("penstock_kernels.gpu.fused_linear.processor", lambda _device: chip)

    def is_taken(num_rows: int, num_columns: int, dtype: torch.dtype = BF16) -> bool:
        x: Any = SimpleNamespace(device=torch.device("cuda"), shape=(num_rows, 4), dtype=dtype)
        chosen = table.fused_linear.choose(x, torch.zeros(num_columns, 4), None, None, False)
        return chosen is not table.fused_linear.reference

    assert [is_taken(rows, 6) for rows in (0, 1, 8, 9, 16)] == [False, True, True, False, False]
    assert not is_taken(1, 7), "it was not measured"
    assert not is_taken(1, 6, torch.float32)


@pytest.mark.parametrize(("name", "args"), IN_C)
def test_the_interpreter_runs_the_kernel_wherever_there_is_one(
    name: str, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("penstock_kernels.base.devices.INTERPRETS", True)
    row = ROWS[name]
    has_kernel = row.gpu is not None and (name != "linear" or args[3])
    assert row.choose(*args) is (table.launcher(row.gpu) if has_kernel and row.gpu else row.native)


def test_a_machine_without_triton_computes() -> None:
    program = """
import sys, torch
sys.modules["triton"] = None
import penstock_kernels as ops
from penstock_kernels import backends
assert ops.silu_mul(torch.ones(2, 8)).shape == (2, 4)
assert ops.route(torch.ones(2, 8), 2).weights.shape == (2, 2)
assert backends.choose("auto", backends.Demand(torch.device("cpu"), torch.float32, torch.float32, 8, 2, 64))
assert not [name for name in sys.modules if name.startswith("penstock_kernels.gpu")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
