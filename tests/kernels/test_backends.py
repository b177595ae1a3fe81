"""Attention backends: adapters hand other libraries the right numbers, and unavailable backends are refused."""

import sys
from dataclasses import replace
from typing import Any

import library_stand_ins as stand_ins
import pytest
import torch
from penstock_kernels import AttentionArguments, AttentionSpans, Scoring, paged_attention, reference
from penstock_kernels.adapters import measured
from penstock_kernels.adapters.cudnn import cudnn
from penstock_kernels.adapters.flash_attention_3 import flash_attention_3
from penstock_kernels.adapters.flashinfer import FlashInferAttention, page_table
from penstock_kernels.adapters.gathered import GatheredPrompts
from penstock_kernels.adapters.varlen import varlen
from penstock_kernels.backends import (
    NAMES,
    Demand,
    LatentDemand,
    Unsupported,
    choose,
    choose_for_latents,
)
from penstock_kernels.native.library import library

NAN = float("nan")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def arguments(
    lens: list[tuple[int, int]],
    scoring: Scoring,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    device: torch.device = CPU,
    dim: int = 16,
) -> AttentionArguments:
    """Spans of (query, context) tokens over scattered blocks of 4; what is no context of theirs is NaN."""
    needed = [-(-context // 4) for _, context in lens]
    caches = torch.full((2, sum(needed) + 2, 4, 2, dim), NAN)
    order = torch.randperm(sum(needed) + 1).add(1).tolist()
    tables = torch.zeros(len(lens), max(needed) + 1, dtype=torch.int32)
    for row, (_, context) in enumerate(lens):
        tables[row, : needed[row]] = torch.tensor([order.pop() for _ in range(needed[row])])
        for position in range(context):
            caches[:, tables[row, position // 4], position % 4] = torch.randn(2, 2, dim)
    queries, contexts = zip(*lens, strict=True)
    # A slice of a fused projection, as models have it.
    query = torch.randn(sum(queries), 9, dim, device=device).to(dtype)[:, :6]
    key_cache, value_cache = caches.to(cache_dtype or dtype).to(device)
    spans = AttentionSpans(queries, contexts, tables.to(device), 4)
    return AttentionArguments(query, key_cache, value_cache, spans, scoring)


DECODES = [(1, 1), (1, 4), (1, 9), (1, 40)]
MIXED = [(3, 3), (1, 9), (12, 30), (9, 9), (1, 1), (20, 20)]
SCORINGS = [
    Scoring(0.3),
    Scoring(0.3, window=6),
    Scoring(0.2, window=1, soft_cap=2.0),
    Scoring(0.3, soft_cap=0.7),
]


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("lens", [DECODES, MIXED], ids=["decodes", "mixed"])
def test_flashinfer_is_given_what_gives_our_result(lens: list[tuple[int, int]], scoring: Scoring) -> None:
    given = arguments(lens, scoring)
    found = FlashInferAttention(stand_ins, CPU)(given)
    torch.testing.assert_close(found, reference.paged_attention(given), atol=1e-5, rtol=1e-4)


def test_flashinfer_is_given_the_scales_of_a_cache_of_eight_bits() -> None:
    scoring = Scoring(0.3, key_scale=0.5, value_scale=2.0)
    given = arguments(MIXED, scoring, cache_dtype=torch.float8_e4m3fn)
    found = FlashInferAttention(stand_ins, CPU)(given)
    torch.testing.assert_close(found, reference.paged_attention(given), atol=1e-4, rtol=1e-3)


def test_flashinfer_plans_a_step_once_for_the_layers_that_score_alike() -> None:
    backend = FlashInferAttention(stand_ins, CPU)
    steps = [arguments(DECODES, Scoring(0.3)) for _ in range(5)]
    for step in steps:
        for window in (None, 6, None, 6):
            backend(replace(step, scoring=Scoring(0.3, window)))
    wrappers = [wrapper for ring in backend._wrappers.values() for wrapper in ring]
    # Two kinds of layers, and two steps in flight, each with a wrapper of its own.
    assert sorted(wrapper.num_plans for wrapper in wrappers) == [2, 2, 3, 3]


def test_pages_stand_side_by_side() -> None:
    tables = torch.tensor([[5, 3, 0], [7, 0, 0], [2, 9, 4]], dtype=torch.int32)
    table = page_table(AttentionSpans((2, 1, 1), (8, 1, 9), tables, 4))
    assert table.query_starts.tolist() == [0, 2, 3, 4]
    assert table.page_starts.tolist() == [0, 2, 3, 6]
    assert table.pages.tolist() == [5, 3, 7, 2, 9, 4]
    assert table.last_lens.tolist() == [4, 1, 1]


@pytest.mark.parametrize("scoring", [Scoring(0.3), Scoring(0.3, window=6)])
@pytest.mark.parametrize("lens", [DECODES, MIXED, [(9, 9), (20, 20)]], ids=["decodes", "mixed", "prompts"])
def test_varlen_and_our_own_kernels_divide_a_step(lens: list[tuple[int, int]], scoring: Scoring) -> None:
    taken: list[int] = []

    def counted(query: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        taken.append(len(query))
        return stand_ins.varlen_attn(query, *rest, **options)

    given = arguments(lens, scoring)
    found = GatheredPrompts(varlen(counted))(given)
    torch.testing.assert_close(found, reference.paged_attention(given), atol=1e-5, rtol=1e-4)
    assert sum(taken) == sum(length for length, context in lens if length == context > 8)


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("lens", [DECODES, MIXED, [(9, 9), (20, 20)]], ids=["decodes", "mixed", "prompts"])
def test_cudnn_and_our_own_kernels_divide_a_step(lens: list[tuple[int, int]], scoring: Scoring) -> None:
    """With what a CPU has in the place of cuDNN."""
    taken: list[int] = []

    def counted(query: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        taken.append(query.shape[2])
        return torch.nn.functional.scaled_dot_product_attention(query, *rest, **options)

    given = arguments(lens, scoring)
    found = GatheredPrompts(cudnn(counted))(given)
    torch.testing.assert_close(found, reference.paged_attention(given), atol=1e-5, rtol=1e-4)
    is_plain = scoring.window is None and scoring.soft_cap is None
    assert taken == [length for length, context in lens if is_plain and length == context > 8]


LONG = [(512, 700), (3, 3), (600, 600), (1, 9), (40, 90), (9, 9)]


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("lens", [DECODES, MIXED, LONG], ids=["decodes", "mixed", "long"])
def test_flash_attention_3_and_our_own_kernels_divide_a_step(
    lens: list[tuple[int, int]], scoring: Scoring
) -> None:
    taken: list[int] = []

    def counted(query: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        taken.append(len(query))
        return stand_ins.flash_attn_varlen_func(query, *rest, **options)

    given = arguments(lens, scoring)
    found = GatheredPrompts(flash_attention_3(counted))(given)
    torch.testing.assert_close(found, reference.paged_attention(given), atol=1e-5, rtol=1e-4)
    expected = [length for length, context in lens if length == context > 8 or length >= 512]
    assert sum(taken) == (0 if scoring.window else sum(expected))


def test_a_public_call_is_checked_whoever_computes_it() -> None:
    given = arguments(DECODES, Scoring(0.3))
    tensors = (given.query, given.key_cache, given.value_cache)
    with pytest.raises(ValueError, match="window 0"):
        paged_attention(*tensors, given.spans, Scoring(0.3, window=0), FlashInferAttention(stand_ins, CPU))


MODEL = Demand(CPU, torch.float32, torch.float32, 8, 2, 64)
ON_GPU = Demand(torch.device("cuda"), torch.bfloat16, torch.bfloat16, 8, 2, 128)


@pytest.mark.parametrize(
    ("name", "demand", "reason"),
    [
        ("triton", MODEL, "need a CUDA device, this one is cpu"),
        ("native", ON_GPU, "it is C for the CPU, this device is cuda"),
        ("native", replace(MODEL, cache_dtype=torch.float8_e4m3fn), "with a cache of float8_e4m3fn"),
        ("flashinfer", MODEL, "it needs a CUDA device, this one is cpu"),
        ("flashinfer", replace(ON_GPU, head_dim=80), "64, 128, 256 numbers, this model's 80"),
        ("flashinfer", replace(ON_GPU, has_sinks=True), "it has no attention sinks"),
        ("flashinfer", replace(ON_GPU, has_slopes=True), "it knows no slopes of scores"),
        ("varlen", replace(ON_GPU, has_slopes=True), "it knows no slopes of scores"),
        ("fa3", replace(ON_GPU, has_slopes=True), "it knows no slopes of scores"),
        ("cudnn", replace(ON_GPU, has_slopes=True), "it knows no slopes of scores"),
        ("varlen", replace(ON_GPU, has_chunks=True), "it knows no chunks of positions"),
        ("flashinfer", replace(ON_GPU, dtype=torch.float32), "not float32"),
        ("flashinfer", replace(ON_GPU, batch_invariant=True), "leave out --batch-invariant"),
        ("varlen", replace(ON_GPU, has_soft_cap=True), "it has no soft cap"),
        ("varlen", replace(ON_GPU, cache_dtype=torch.float8_e4m3fn), "no cache of float8_e4m3fn"),
        ("varlen", replace(ON_GPU, head_dim=260), "at most 256 numbers, a multiple of 8, this model's 260"),
        ("cudnn", MODEL, "it needs a CUDA device, this one is cpu"),
        ("cudnn", replace(ON_GPU, head_dim=192), "at most 128 numbers, a multiple of 8, this model's 192"),
        ("cudnn", replace(ON_GPU, has_soft_cap=True), "it has no soft cap"),
        ("cudnn", replace(ON_GPU, cache_dtype=torch.float8_e4m3fn), "no cache of float8_e4m3fn"),
        ("cudnn", replace(ON_GPU, has_sinks=True), "it has no attention sinks"),
        ("fa3", replace(ON_GPU, head_dim=260), "at most 256 numbers, a multiple of 8, this model's 260"),
        ("fa3", replace(ON_GPU, dtype=torch.float16), "it computes bfloat16, not float16"),
        ("fa3", replace(ON_GPU, cache_dtype=torch.float8_e4m3fn), "no cache of float8_e4m3fn"),
        ("fa3", replace(ON_GPU, has_sinks=True), "it has no attention sinks"),
        ("fa3", replace(ON_GPU, batch_invariant=True), "leave out --batch-invariant"),
    ],
)
def test_what_a_backend_cannot_do_is_reported(name: str, demand: Demand, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        choose(name, demand)


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(Unsupported, match="flashinfer cannot be imported here"):
        choose("flashinfer", ON_GPU)


def test_flash_attention_3_is_for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", None)
    with pytest.raises(Unsupported, match="fa3_fwd_interface cannot be imported here"):
        choose("fa3", ON_GPU)
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", stand_ins)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    with pytest.raises(Unsupported, match=r"capability 9.0 \(H100, H200\), this device has 8.9"):
        choose("fa3", ON_GPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert choose("fa3", ON_GPU).name == "fa3"


def test_an_older_varlen_is_refused_and_this_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("varlen", ON_GPU).name == "varlen"
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda query, scale, enable_gqa: query)
    with pytest.raises(Unsupported, match="that of this PyTorch has no window_size"):
        choose("varlen", ON_GPU)


def test_what_is_our_own_is_taken_unless_asked() -> None:
    on_cpu = choose("auto", MODEL)
    assert (on_cpu.name, on_cpu.captures_prompts) == ("native" if library() else "reference", bool(library()))
    assert choose("auto", replace(MODEL, dtype=torch.float16, cache_dtype=torch.float16)).name == "reference"
    assert choose("auto", ON_GPU).name == "triton"
    for demand in (replace(ON_GPU, has_chunks=True), replace(ON_GPU, has_slopes=True)):
        own = choose("auto", demand)
        assert (own.name, own.capturable, own.captures_prompts) == ("triton", True, True)
        assert choose("triton", demand).captures_prompts
    assert choose("cudnn", ON_GPU).captures_prompts is False
    assert choose("reference", ON_GPU).capturable is False
    assert set(NAMES) == {"auto", "triton", "native", "reference", "flashinfer", "varlen", "fa3", "cudnn"}


def test_auto_takes_what_was_measured_to_be_faster_where_it_can_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiles = pytest.importorskip("penstock_kernels.gpu.tiles")
    chip = tiles.Processor(132, 232_448, "NVIDIA H200")
    monkeypatch.setattr(tiles, "processor", lambda device: chip)
    monkeypatch.setattr(measured, "FASTER", {"NVIDIA H200": {64: "cudnn"}, "NVIDIA H100": {128: "cudnn"}})
    demand = replace(ON_GPU, head_dim=64)
    assert choose("auto", demand).name == "cudnn"
    for other in (
        replace(demand, head_dim=128),
        replace(demand, has_sinks=True),
        replace(demand, batch_invariant=True),
    ):
        assert choose("auto", other).name == "triton"
    assert choose("triton", demand).name == "triton"
    assert choose("auto", replace(MODEL, head_dim=64)).name in ("native", "reference")


@pytest.mark.parametrize(
    ("dim", "dtype", "shared_bytes", "name"),
    [
        (512, torch.bfloat16, 232_448, "triton"),
        (512, torch.float16, 166_912, "triton"),
        (512, torch.float32, 232_448, "reference"),
        (512, torch.bfloat16, 101_376, "reference"),
        (576, torch.bfloat16, 232_448, "reference"),
    ],
)
def test_large_heads_need_shared_memory(
    dim: int, dtype: torch.dtype, shared_bytes: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles = pytest.importorskip("penstock_kernels.gpu.tiles")
    monkeypatch.setattr(tiles, "processor", lambda device: tiles.Processor(132, shared_bytes))
    demand = replace(ON_GPU, head_dim=dim, dtype=dtype, cache_dtype=dtype)
    chosen = choose("auto", demand)
    assert (chosen.name, chosen.capturable) == (name, name == "triton")
    if name == "reference":
        with pytest.raises(
            Unsupported, match=f"{shared_bytes} bytes of shared memory, too few for heads of {dim}"
        ):
            choose("triton", demand)


LATENTS = LatentDemand(torch.device("cuda"), torch.bfloat16, 512, 64, 128)


def test_latents_are_attended_to_by_our_own_unless_asked() -> None:
    on_gpu = choose_for_latents("auto", LATENTS)
    assert (on_gpu.name, on_gpu.capturable, on_gpu.captures_prompts) == ("triton", True, True)
    assert choose_for_latents("triton", LATENTS) == on_gpu
    assert choose_for_latents("reference", LATENTS).capturable is False
    assert choose_for_latents("auto", replace(LATENTS, rank=600)).name == "reference"
    on_cpu = choose_for_latents("auto", replace(LATENTS, device=CPU))
    assert (on_cpu.name, on_cpu.captures_prompts) == ("native" if library() else "reference", False)
    for name, demand, reason in (
        ("triton", replace(LATENTS, device=CPU), "need a CUDA device, this one is cpu"),
        ("triton", replace(LATENTS, rank=600), "at most 512 numbers, this model's 600"),
        ("native", LATENTS, "it is C for the CPU, this device is cuda"),
    ):
        with pytest.raises(Unsupported, match=reason):
            choose_for_latents(name, demand)


_MODULES = {"flashinfer": "flashinfer", "fa3": "fa3_fwd_interface"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["flashinfer", "varlen", "fa3", "cudnn"])
@pytest.mark.parametrize("lens", [DECODES, MIXED, LONG], ids=["decodes", "mixed", "long"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_libraries_themselves_give_our_result(
    name: str, lens: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    if name in _MODULES:
        pytest.importorskip(_MODULES[name])
    if name == "fa3" and dtype == torch.float16:
        pytest.skip("it computes bfloat16 only")
    device = torch.device("cuda")
    backend = choose(name, replace(ON_GPU, dtype=dtype, cache_dtype=dtype, num_heads=6))
    for scoring in (Scoring(0.3), Scoring(0.3, window=6)):
        given = arguments(lens, scoring, dtype, device=device, dim=128)
        torch.testing.assert_close(
            backend.attend(given), reference.paged_attention(given), atol=2e-2, rtol=2e-2
        )
