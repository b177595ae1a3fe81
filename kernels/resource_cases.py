"""The configurations of kernels that `resources.py` compiles: ops, called on tensors without memory."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import penstock_kernels as ops
import torch
from penstock_kernels import AttentionSpans
from penstock_kernels.base.quantized import rounding_on_gpu

BF16 = torch.bfloat16


def _tensor(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _peers(size: int, max_rows: int, row_bytes: int) -> ops.Peers:
    page = _tensor(ops.Peers.page_bytes(size, max_rows, row_bytes), dtype=torch.uint8)
    numbers = (_tensor(count, dtype=torch.int64) for count in (size, max_rows))
    return ops.Peers(size - 1, max_rows, row_bytes, (page,) * size, *numbers)


def _attend(
    lens: list[tuple[int, int]],
    heads: tuple[int, int] = (32, 8),
    dim: int = 128,
    block_size: int = 16,
    dtype: torch.dtype = BF16,
    cache_dtype: torch.dtype | None = None,
    tree: bool = False,
    sinks: bool = False,
    slopes: bool = False,
    **options: Any,
) -> None:
    queries, contexts = (tuple(pair[i] for pair in lens) for i in range(2))
    tables = torch.zeros(len(lens), 1024, dtype=torch.int32)
    bits = torch.zeros(sum(queries), dtype=torch.int32) if tree else None
    spans = AttentionSpans(queries, contexts, tables, block_size, tree=bits)
    caches = [_tensor(64, block_size, heads[1], dim, dtype=cache_dtype or dtype) for _ in range(2)]
    if sinks:
        options["sinks"] = _tensor(heads[0], dtype=torch.float32)
    if slopes:
        options["slopes"] = _tensor(heads[0], dtype=torch.float32)
    scoring = ops.Scoring(dim**-0.5, **options)
    ops.paged_attention(_tensor(sum(queries), heads[0], dim, dtype=dtype), *caches, spans, scoring)


def _attend_by_descriptors(*arguments: Any, **options: Any) -> None:
    """As on a device where that was measured to be faster. Recordings are of one without a name."""
    with mock.patch("penstock_kernels.gpu.cache_descriptors.MEASURED_FASTER", {""}):
        _attend(*arguments, **options)


def _attend_in_graph() -> None:
    """512 tokens of up to 64 spans, of which up to 16 are prompts."""
    starts, contexts, tables = (_tensor(*shape, dtype=torch.int32) for shape in ((65,), (64,), (64, 1024)))
    spans = ops.DecodeSpans(starts, contexts, tables, 16, 8, 16384, num_prompts=16)
    caches = [_tensor(64, 16, 8, 128) for _ in range(2)]
    ops.paged_attention(_tensor(512, 32, 128), *caches, spans, ops.Scoring(128**-0.5))


def _choose_positions(heads: int, dim: int, dtype: torch.dtype = BF16) -> None:
    """A step of decodes in a graph, of which the host knows no lengths."""
    starts, contexts, tables = (_tensor(*shape, dtype=torch.int32) for shape in ((65,), (64,), (64, 1024)))
    spans = ops.DecodeSpans(starts, contexts, tables, 16, 1, 16384)
    weights = _tensor(64, heads, dtype=torch.float32)
    cache = _tensor(64, 16, 1, dim, dtype=dtype)
    ops.choose_positions(_tensor(64, heads, dim, dtype=dtype), weights, cache, spans, 2048)


def _attend_chosen() -> None:
    """To positions that an index chose: blocks of one."""
    starts, contexts, tables = (_tensor(*shape, dtype=torch.int32) for shape in ((65,), (64,), (64, 2048)))
    spans = ops.DecodeSpans(starts, contexts, tables, 1, 1, 2048)
    ups = (_tensor(16, *shape) for shape in ((512, 128), (128, 512)))
    ops.latent_attention(_tensor(64, 16, 192), _tensor(1024, 1, 1, 512 + 64), *ups, spans, 0.1)


def _attend_latents(lens: list[tuple[int, int]], heads: int, dtype: torch.dtype = BF16) -> None:
    """DeepSeek V3, on one GPU or on eight."""
    queries, contexts = (tuple(pair[i] for pair in lens) for i in range(2))
    spans = AttentionSpans(queries, contexts, torch.zeros(len(lens), 1024, dtype=torch.int32), 16)
    cache = _tensor(64, 16, 1, 512 + 64, dtype=dtype)
    ups = (_tensor(heads, *shape, dtype=dtype) for shape in ((512, 128), (128, 512)))
    ops.latent_attention(_tensor(sum(queries), heads, 192, dtype=dtype), cache, *ups, spans, 0.1)


def _find(op: Callable[..., Any], *numbers: Any) -> None:
    slots, tokens, table = _tensor(64, dtype=torch.int64), *(_tensor(65, 8192, dtype=torch.int32),) * 2
    op(slots, slots, *numbers, tokens, table, 16, 64)


def _rotate(dim: int, rotary_dim: int, norm: bool, cache_dtype: torch.dtype = BF16) -> None:
    caches = [_tensor(64, 16, 8, dim, dtype=cache_dtype) for _ in range(2)]
    angles = _tensor(48, rotary_dim)
    given = ops.NormOfHeads(_tensor(40, dim), 1e-6) if norm else None
    positions = _tensor(48, dtype=torch.int64)
    ops.rotate_and_store(_tensor(48, 48, dim), angles, angles, *caches, positions, given, key_scale=0.5)


def _draw_params(num_rows: int) -> ops.DrawParams:
    numbers = [_tensor(num_rows, dtype=torch.float32) for _ in range(4)]
    counters = [_tensor(num_rows, dtype=torch.int64) for _ in range(2)]
    return ops.DrawParams(numbers[0], _tensor(num_rows, dtype=torch.int32), *numbers[1:], *counters)


def _experts(num_tokens: int, num_experts: int, top_k: int, dim: int, size: int, dtype: torch.dtype = BF16,
             bias: bool = False, activate: Callable[[torch.Tensor], torch.Tensor] = ops.silu_mul,
             part: ops.ExpertPart | None = None) -> None:  # fmt: skip
    biases = [_tensor(num_experts, length, dtype=dtype) if bias else None for length in (2 * size, dim)]
    weights = [_tensor(num_experts, *shape, dtype=dtype) for shape in ((2 * size, dim), (dim, size))]
    x, chosen = _tensor(num_tokens, dim, dtype=dtype), _tensor(num_tokens, top_k, dtype=torch.float32)
    ops.grouped_mlp(x, chosen.long(), chosen, *weights, activate, *biases, part=part)


def _gpt_oss(num_tokens: int) -> None:
    _experts(num_tokens, 32, 4, 2880, 2880, bias=True, activate=ops.clamped_swiglu)


def _quantized_experts(num_tokens: int, num_experts: int, top_k: int, gate_up: tuple[ops.Quantized, ...],
                       down: ops.Quantized, bias: bool = False) -> None:  # fmt: skip
    dim, size = down.shape
    x, chosen = _tensor(num_tokens, dim), _tensor(num_tokens, top_k, dtype=torch.float32)
    biases = [_tensor(num_experts, length) if bias else None for length in (2 * size, dim)]
    matrices = (gate_up,) * num_experts, (down,) * num_experts
    ops.quantized_grouped_mlp(x, chosen.long(), chosen, *matrices, ops.silu_mul, *biases)


def _mxfp4_experts(num_tokens: int) -> None:
    """Those of gpt-oss, whose gates and others lie in turns."""
    halves = (_mxfp4(5760, 2880).rows(slice(first, None, 2)) for first in range(2))
    _quantized_experts(num_tokens, 32, 4, tuple(halves), _mxfp4(2880, 2880), bias=True)


def _int4_experts(num_tokens: int) -> None:
    """The experts of a Qwen3 of 30B."""
    _quantized_experts(num_tokens, 128, 8, (_int4(128, 768, 2048),) * 2, _int4(128, 2048, 768))


def _fp8_experts(num_tokens: int) -> None:
    """Half of each of those of DeepSeek V3."""
    _quantized_experts(num_tokens, 256, 8, (_fp8(1024, 7168),) * 2, _fp8(7168, 1024))


def _multiply(num_rows: int, weight: ops.Quantized) -> None:
    ops.quantized_linear(_tensor(num_rows, weight.shape[1]), weight)


def _multiply_rounded(num_rows: int, weight: ops.Quantized) -> None:
    _multiply(num_rows, rounding_on_gpu(weight))


def _fp8_experts_rounded(num_tokens: int) -> None:
    ups = rounding_on_gpu(_fp8(1024, 7168))
    _quantized_experts(num_tokens, 256, 8, (ups,) * 2, rounding_on_gpu(_fp8(7168, 1024)))


def _fused(norm: bool, gated: bool, num_columns: int = 6144) -> None:
    x, weight = _tensor(16, 4096), _tensor(num_columns, 4096)
    with mock.patch("penstock_kernels.gpu.fused_linear.is_faster", return_value=True):
        ops.fused_linear(x, weight, None, ops.InputNorm(weight[0], 1e-5, x) if norm else None, gated)


def _int4(group: int = 128, rows: int = 6144, columns: int = 4096) -> ops.Quantized:
    codes, scales = _tensor(rows, columns // 2, dtype=torch.uint8), _tensor(rows, columns // group)
    return ops.IntGroups(codes, scales, _tensor(rows, columns // group, dtype=torch.uint8), columns, 4, group)


def _int8() -> ops.Quantized:
    return ops.IntGroups(_tensor(6144, 4096, dtype=torch.int8), _tensor(6144, 1), None, 4096, 8, 4096)


def _mxfp4(rows: int = 6144, columns: int = 4096) -> ops.Quantized:
    scales = _tensor(rows, columns // 32, dtype=torch.float8_e8m0fnu)
    table = _tensor(16, dtype=torch.float32)
    return ops.TableBlocks(_tensor(rows, columns // 2, dtype=torch.uint8), table, scales, columns, 32)


def _fp8(rows: int = 6144, columns: int = 4096) -> ops.Quantized:
    scales = _tensor(rows // 128, columns // 128, dtype=torch.float32)
    return ops.Float8Grid(_tensor(rows, columns, dtype=torch.float8_e4m3fn), scales, 128, 128)


# Kinds of steps of recurrent layers, as the names of cases end.
DRAFTS, PROMPTS = ", drafts", ", prompts"


def _spans(kind: str) -> ops.RecurrentSpans:
    """64 single tokens; of drafts, those of a sequence may follow each other, and states behind them are kept. Or a
    prompt of as many tokens."""
    lens = (64,) if kind == PROMPTS else (1,) * 64
    is_first = torch.empty(len(lens), dtype=torch.bool, device="meta")
    kept = _tensor(64, dtype=torch.int64) if kind == DRAFTS else None
    return ops.RecurrentSpans(_tensor(len(lens), dtype=torch.int64), is_first, lens, kept)


def _float(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device="meta")


def _convolve(kind: str) -> None:
    ops.causal_conv(_tensor(64, 8192), _tensor(8192, 4), None, _tensor(64, 3, 8192), _spans(kind), silu=True)


def _correct(by_row: bool, kind: str) -> None:
    """Qwen3-Next, or Kimi Linear."""
    keys, of_heads = _tensor(64, 32 if by_row else 16, 128), (32, 128) if by_row else (32,)
    numbers = _tensor(64, 32, 128), _tensor(64, *of_heads), _tensor(64, 32)
    decay = ops.Decay(_float(32), _float(*of_heads))
    ops.gated_delta_rule(keys, keys, *numbers, decay, _float(64, 32, 128, 128), _spans(kind))


def _scan(kind: str) -> None:
    """Nemotron-H."""
    groups = _tensor(64, 8, 128)
    numbers = _tensor(64, 128, 64), _tensor(64, 128), ops.Decay(_float(128), _float(128))
    ops.state_space_scan(*numbers, groups, groups, _float(128), _float(64, 128, 64, 128), _spans(kind))


def _select(kind: str) -> None:
    """Falcon Mamba."""
    x, numbers, vector = _tensor(64, 8192), _tensor(64, 16), _float(8192)
    ops.selective_scan(
        x, x, vector, _float(8192, 16), numbers, numbers, vector, _float(64, 8192, 16), _spans(kind)
    )


ONE, DRAFT, PROMPT = [(1, 4096)] * 64, [(8, 4096)] * 16, [(2048, 4096)]

# Every configuration by name. An op may launch several kernels.
CASES: dict[str, Callable[[], Any]] = {
    "rms_norm 4096": lambda: ops.rms_norm(_tensor(64, 4096), _tensor(4096), 1e-5, _tensor(64, 4096)),
    "rms_norm 128 of heads": lambda: ops.rms_norm(_tensor(64, 48, 128)[:, :40], _tensor(40, 128), 1e-5),
    "sum over 8 ranks, norm 8192": lambda: ops.all_reduce_add_rms_norm(
        _tensor(36, 8192), _tensor(8192), 1e-5, _tensor(36, 8192), 0.0, _peers(8, 36, 2 * 8192)
    ),
    "layer_norm 5120": lambda: ops.layer_norm(_tensor(64, 5120), _tensor(5120), _tensor(5120), 1e-5),
    "silu_mul": lambda: ops.silu_mul(_tensor(64, 2 * 14336)),
    "gelu_mul": lambda: ops.gelu_mul(_tensor(64, 2 * 14336)),
    "route": lambda: ops.route(_tensor(64, 128), 8, normalized=True),
    "route of DeepSeek": lambda: ops.route(
        _float(64, 256), 8, True, _float(256), ops.Routing(True, 8, 4, True, 2.5)
    ),
    "experts of Mixtral, decode": lambda: _experts(64, 8, 2, 4096, 14336),
    "experts of Mixtral, prefill": lambda: _experts(2048, 8, 2, 4096, 14336),
    "experts of Mixtral, fp32": lambda: _experts(64, 8, 2, 4096, 14336, torch.float32),
    "experts of Qwen3, decode": lambda: _experts(64, 128, 8, 2048, 768),
    "a quarter of the experts of Qwen3": lambda: _experts(64, 32, 8, 2048, 768, part=ops.ExpertPart(32, 128)),
    "experts of Qwen3, 512 tokens": lambda: _experts(512, 128, 8, 2048, 768),
    "experts of Qwen3, prefill": lambda: _experts(4096, 128, 8, 2048, 768),
    "experts of gpt-oss, decode": lambda: _gpt_oss(64),
    "experts of gpt-oss, prefill": lambda: _gpt_oss(2048),
    **{
        f"experts of {name}, {rows} tokens": lambda rows=rows, experts=experts: experts(rows)
        for name, experts in {
            "gpt-oss in mxfp4": _mxfp4_experts,
            "Qwen3 in int4": _int4_experts,
            "DeepSeek in fp8, a half": _fp8_experts,
        }.items()
        for rows in (64, 4096)
    },
    "product, 16 rows": lambda: _fused(False, False),
    "product behind a norm, 16 rows": lambda: _fused(True, False),
    "gated product behind a norm, 16 rows": lambda: _fused(True, True, 28672),
    **{
        f"{name}, {rows} rows": lambda rows=rows, make=make: _multiply(rows, make())
        for name, make in {
            "int4": _int4,
            "int4 in 32": lambda: _int4(32),
            "int8": _int8,
            "mxfp4": _mxfp4,
            "fp8": _fp8,
        }.items()
        for rows in (16, 64, 2048)
    },
    **{
        f"int8 by rows of int8, {rows} rows": lambda rows=rows: _multiply_rounded(rows, _int8())
        for rows in (16, 64, 2048)
    },
    "add_adapters": lambda: ops.add_adapters(
        *[_tensor(64, 4096)] * 2,
        ops.AdapterRows(_tensor(64, dtype=torch.int64)),
        ops.AdapterTable(8, torch.device("meta")),
    ),
    "adapt_embedding": lambda: ops.adapt_embedding(
        _tensor(64, 4096),
        _tensor(64, dtype=torch.int64),
        ops.AdapterRows(_tensor(64, dtype=torch.int64)),
        ops.EmbeddingTable(8, torch.device("meta")),
        0,
    ),
    **{
        name + kind: partial(make, kind)
        for name, make in {
            "causal_conv": _convolve,
            "delta rule": partial(_correct, False),
            "delta rule, by row": partial(_correct, True),
            "state_space_scan": _scan,
            "selective_scan": _select,
        }.items()
        for kind in ("", DRAFTS)
    },
    f"causal_conv{PROMPTS}": partial(_convolve, PROMPTS),
    f"delta rule{PROMPTS}": partial(_correct, False, PROMPTS),
    f"delta rule, by row{PROMPTS}": partial(_correct, True, PROMPTS),
    f"state_space_scan{PROMPTS}": partial(_scan, PROMPTS),
    "gate_by_sigmoid": lambda: ops.gate_by_sigmoid(_tensor(64, 4096), _tensor(64, 8192)[:, 4096:]),
    "gate_by_sigmoid shared": lambda: ops.gate_by_sigmoid(_tensor(64, 4096), _tensor(64, 1)),
    "gated_norm": lambda: ops.gated_norm(_tensor(64, 32, 128), _tensor(64, 4096), _float(128), 1e-6, False),
    "embedding": lambda: ops.embedding(_tensor(64, dtype=torch.int64), _tensor(128256, 4096)),
    "rotate_and_store 128": lambda: _rotate(128, 128, False),
    "rotate_and_store 128 norm": lambda: _rotate(128, 128, True),
    "rotate_and_store 80/32": lambda: _rotate(80, 32, False),
    "rotary_table": lambda: ops.rotary_table(
        _tensor(64, dtype=torch.int64), _tensor(64, dtype=torch.float32), 1.0, BF16
    ),
    "store_kv": lambda: ops.store_kv(
        *[_tensor(64, 48, 128)[:, :8]] * 2, *[_tensor(64, 16, 8, 128)] * 2, _tensor(64, dtype=torch.int64)
    ),
    "copy_blocks": lambda: ops.copy_blocks(
        _tensor(32, 2, 64, 16, 8, 128), *[_tensor(4, dtype=torch.int64)] * 2
    ),
    "find_decodes": lambda: _find(ops.find_decodes),
    "find_spans": lambda: _find(ops.find_spans, _tensor(64, dtype=torch.int64), 512),
    "write_runs": lambda: ops.write_runs(
        *[_tensor(size, dtype=torch.int32) for size in (4096, 256)], _tensor(64, 3, dtype=torch.int32), 64
    ),
    "decode 128": lambda: _attend(ONE),
    "decode 128 fp16": lambda: _attend(ONE, dtype=torch.float16),
    "decode 128 fp32": lambda: _attend(ONE, dtype=torch.float32),
    "decode 128 split": lambda: _attend(ONE[:1]),
    "decode 128 window": lambda: _attend(ONE, window=1024),
    "decode 128 chunks": lambda: _attend(ONE, (40, 8), chunk=8192),
    "decode 64 sinks": lambda: _attend(ONE, (64, 8), 64, window=128, sinks=True),
    "decode 256 soft cap": lambda: _attend(ONE, (16, 8), 256, soft_cap=50.0),
    "decode 80": lambda: _attend(ONE, (32, 32), 80),
    "decode 192 block 64": lambda: _attend(ONE, (32, 8), 192, 64),
    # MPT, and with groups of heads; Falcon RW.
    "decode 128 slopes": lambda: _attend(ONE, (32, 32), slopes=True),
    "decode 128 slopes, drafts": lambda: _attend(DRAFT, slopes=True),
    "decode 64 slopes": lambda: _attend(ONE, (64, 64), 64, slopes=True),
    "decode 128 drafts": lambda: _attend(DRAFT),
    "decode 128 tree, group 16": lambda: _attend(DRAFT, (64, 4), tree=True),
    "decode 256 drafts": lambda: _attend(DRAFT, (32, 4), 256, 128),
    # Layers of Gemma 4 that see everything.
    "decode 512": lambda: _attend(ONE, (16, 2), 512),
    "decode 512 drafts": lambda: _attend(DRAFT, (32, 4), 512),
    "prefill 512": lambda: _attend(PROMPT, (16, 2), 512),
    "prefill 128": lambda: _attend(PROMPT),
    "prefill 128 fp16": lambda: _attend(PROMPT, dtype=torch.float16),
    "prefill 128 fp32": lambda: _attend(PROMPT, dtype=torch.float32),
    "prefill 128 window": lambda: _attend(PROMPT, window=1024),
    "prefill 128 chunks": lambda: _attend(PROMPT, (40, 8), chunk=1024),
    "prefill 64 sinks": lambda: _attend(PROMPT, (64, 8), 64, window=128, sinks=True),
    "prefill 256 soft cap": lambda: _attend(PROMPT, (16, 8), 256, window=4096, soft_cap=50.0),
    "prefill 80": lambda: _attend(PROMPT, (32, 32), 80),
    "prefill 192 block 64": lambda: _attend(PROMPT, (32, 8), 192, 64),
    "prefill 128 slopes": lambda: _attend(PROMPT, (32, 32), slopes=True),
    "prefill 128 slopes, groups": lambda: _attend(PROMPT, slopes=True),
    "prefill 64 slopes": lambda: _attend(PROMPT, (64, 64), 64, slopes=True),
    "prefill 128 in a graph": lambda: _attend_in_graph(),
    "latents, 16 heads": lambda: _attend_latents(ONE, 16),
    "latents, 16 heads fp32": lambda: _attend_latents(ONE, 16, torch.float32),
    "latents, 16 heads, drafts": lambda: _attend_latents(DRAFT, 16),
    # GLM-4.7-Flash: a tile has heads of several tokens.
    "latents, 20 heads, drafts, prompt": lambda: _attend_latents([*DRAFT, (64, 4096)], 20),
    "latents, 128 heads": lambda: _attend_latents(ONE, 128),
    "latents, 128 heads fp16, split": lambda: _attend_latents(ONE[:1], 128, torch.float16),
    "latents, 128 heads, prompt": lambda: _attend_latents([(64, 4096)], 128),
    "latents, 16 heads, chosen": lambda: _attend_chosen(),
    # DeepSeek V3.2 and GLM-5.
    "index, 64 heads": lambda: _choose_positions(64, 128),
    "index, 32 heads": lambda: _choose_positions(32, 128),
    "index, 64 heads of 256": lambda: _choose_positions(64, 256),
    "index, 64 heads fp32": lambda: _choose_positions(64, 128, torch.float32),
    "draw": lambda: ops.draw(_tensor(64, 128256, dtype=torch.float32), _draw_params(64)),
    "gumbel": lambda: ops.gumbel(*[_tensor(64, dtype=torch.int64)] * 2, 128256),
    "uniform": lambda: ops.uniform(_tensor(64, dtype=torch.int64), 128256),
    "token_logprobs 20": lambda: ops.token_logprobs(
        _tensor(64, 128256, dtype=torch.float32), _tensor(64, dtype=torch.int64), 20
    ),
}
# Conversions from eight bits came with sm_89.
FLOAT8_CASES: dict[str, Callable[[], Any]] = {
    **{
        f"fp8 by rows of fp8, {rows} rows": lambda rows=rows: _multiply_rounded(rows, _fp8())
        for rows in (16, 64, 2048)
    },
    **{
        f"experts of DeepSeek in fp8 by rows of fp8, {rows} tokens": lambda rows=rows: _fp8_experts_rounded(
            rows
        )
        for rows in (64, 4096)
    },
    "store_kv fp8": lambda: ops.store_kv(
        *[_tensor(64, 48, 128)[:, :8]] * 2,
        *[_tensor(64, 16, 8, 128, dtype=torch.float8_e4m3fn)] * 2,
        _tensor(64, dtype=torch.int64),
    ),
    "rotate_and_store 128 fp8": lambda: _rotate(128, 128, False, torch.float8_e4m3fn),
    "decode 128 fp8": lambda: _attend(ONE, cache_dtype=torch.float8_e4m3fn),
    "prefill 64 fp8 slopes": lambda: _attend(
        PROMPT, (64, 8), 64, cache_dtype=torch.float8_e4m3fn, slopes=True
    ),
    "prefill 128 fp8": lambda: _attend(PROMPT, cache_dtype=torch.float8_e4m3fn),
}
# Descriptors of tensors came with sm_90.
DESCRIPTOR_CASES: dict[str, Callable[[], Any]] = {
    f"prefill {name} by descriptors": partial(_attend_by_descriptors, PROMPT, *shape, **options)
    for name, shape, options in (
        ("128", ((32, 8), 128, 128), {}),
        ("128 fp8", ((32, 8), 128, 128), {"cache_dtype": torch.float8_e4m3fn}),
        ("128 window", ((32, 8), 128, 128), {"window": 1024}),
        ("128 slopes", ((32, 8), 128, 128), {"slopes": True}),
        ("64", ((32, 8), 64, 128), {}),
        ("64 sinks", ((64, 8), 64, 256), {"window": 128, "sinks": True}),
        ("80", ((32, 32), 80, 128), {}),
        ("256 soft cap", ((16, 8), 256, 128), {"window": 4096, "soft_cap": 50.0}),
        ("512", ((16, 2), 512, 128), {}),
    )
}
