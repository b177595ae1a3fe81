"""Times the kernels on a GPU: `python -m benchmarks.kernels [--out results.json] [op …]`.

Ceilings are measured in the same run: a large copy, a large matrix product. An op whose cases fail is not timed. Inputs
are random, larger than the second-level cache where they can be, and times are medians over events.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

_ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(_ROOT / "kernels"))
_CASES = _ROOT / "tests" / "kernels" / "cases"
BF16 = torch.bfloat16


class Work(NamedTuple):
    """A call to time, and the bytes and flop that it needs. `rival` is PyTorch's implementation, where there is one."""

    run: Callable[[], Any]
    num_bytes: float
    flops: float = 0.0
    rival: Callable[[], Any] | None = None


def _random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def rms_norm() -> Work:
    from penstock_kernels import rms_norm as op

    x, residual, weight = _random(16384, 4096), _random(16384, 4096), _random(4096)
    rival = lambda: torch.nn.functional.rms_norm(residual.add_(x), (4096,), weight, 1e-5)  # noqa: E731
    return Work(lambda: op(x, weight, 1e-5, residual), 4 * x.nbytes, rival=rival)


def silu_mul() -> Work:
    from penstock_kernels import silu_mul as op

    x = _random(8192, 2 * 14336)
    rival = lambda: torch.nn.functional.silu(x[:, :14336]) * x[:, 14336:]  # noqa: E731
    return Work(lambda: op(x), 1.5 * x.nbytes, rival=rival)


def rotate_and_store() -> Work:
    from penstock_kernels import rotate_and_store as op

    heads, cos, sin = _random(16384, 48, 128), _random(16384, 128), _random(16384, 128)
    caches = [_random(2048, 16, 8, 128) for _ in range(2)]
    slots = torch.randperm(2048 * 16, device="cuda")[:16384]
    return Work(lambda: op(heads, cos, sin, caches[0], caches[1], slots), 2 * heads.nbytes + 2 * cos.nbytes)


def _attention(lens: list[tuple[int, int]], heads: int = 32, kv_heads: int = 8, dim: int = 128) -> Work:
    from penstock_kernels import AttentionSpans, Scoring, paged_attention

    num_blocks = [-(-context // 16) for _, context in lens]
    order = torch.randperm(sum(num_blocks), dtype=torch.int32)
    tables = torch.zeros(len(lens), max(num_blocks), dtype=torch.int32)
    for span, blocks in enumerate(torch.split(order, num_blocks)):
        tables[span, : len(blocks)] = blocks
    queries, contexts = (tuple(pair[i] for pair in lens) for i in range(2))
    spans = AttentionSpans(queries, contexts, tables.cuda(), 16)
    key_cache, value_cache = (_random(sum(num_blocks), 16, kv_heads, dim) for _ in range(2))
    query = _random(sum(queries), heads, dim)
    pairs = sum(q * c - q * (q - 1) // 2 for q, c in lens)
    num_bytes = 2 * sum(contexts) * kv_heads * dim * 2 + 2 * query.nbytes
    return Work(
        lambda: paged_attention(query, key_cache, value_cache, spans, Scoring(dim**-0.5)),
        num_bytes,
        4 * pairs * heads * dim,
    )


def decode_even() -> Work:
    """64 sequences of 4,096."""
    return _attention([(1, 4096)] * 64)


def decode_skewed() -> Work:
    """One of 131,072 among 31 of 4,096."""
    return _attention([(1, 131072)] + [(1, 4096)] * 31)


def decode_drafts() -> Work:
    return _attention([(8, 4096)] * 64)


def prefill_8k() -> Work:
    return _with_flash(_attention([(8192, 8192)]), 8192)


def prefill_cached() -> Work:
    """2,048 new tokens behind 14,336 cached ones."""
    return _attention([(2048, 16384)])


def _experts(num_tokens: int, num_experts: int, top_k: int, dim: int, size: int) -> Work:
    """The floor: reading the weights of the chosen experts once, or the matrix products."""
    from penstock_kernels import grouped_mlp, route, silu_mul

    gate_up, down = _random(num_experts, 2 * size, dim), _random(num_experts, dim, size)
    logits, x = _random(num_tokens, num_experts), _random(num_tokens, dim)
    num_chosen = int(route(logits, top_k).expert_ids.flatten().bincount().count_nonzero())

    def run() -> torch.Tensor:
        weights, expert_ids = route(logits, top_k, normalized=True)
        return grouped_mlp(x, expert_ids, weights, gate_up, down, silu_mul)

    num_bytes = (gate_up.nbytes + down.nbytes) * num_chosen / num_experts + 2 * x.nbytes
    return Work(run, num_bytes, 6 * num_tokens * top_k * dim * size)


def experts_decode() -> Work:
    """64 tokens, experts as Mixtral's."""
    return _experts(64, 8, 2, 4096, 14336)


def experts_decode_many() -> Work:
    """64 tokens, experts as Qwen3's."""
    return _experts(64, 128, 8, 2048, 768)


def experts_prefill() -> Work:
    """4,096 tokens, experts as Mixtral's."""
    return _experts(4096, 8, 2, 4096, 14336)


def experts_prefill_many() -> Work:
    """4,096 tokens, experts as Qwen3's."""
    return _experts(4096, 128, 8, 2048, 768)


def _with_flash(work: Work, length: int) -> Work:
    query = _random(1, 32, length, 128)
    key, value = (_random(1, 8, length, 128) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    return work._replace(rival=lambda: attend(query, key, value, is_causal=True, enable_gqa=True))


def draw() -> Work:
    from penstock_kernels import DrawParams
    from penstock_kernels import draw as op

    num_rows = 256
    scores = 3 * _random(num_rows, 128256, dtype=torch.float32)

    def full(value: float) -> torch.Tensor:
        return torch.full((num_rows,), value, device="cuda")

    seeds = torch.randint(0, 2**62, (num_rows,), device="cuda")
    params = DrawParams(full(0.8), full(50).int(), full(0.95), full(0.0), full(1.0), seeds, seeds)
    return Work(lambda: op(scores, params), scores.nbytes)


def token_logprobs() -> Work:
    from penstock_kernels import token_logprobs as op

    logits = _random(256, 128256, dtype=torch.float32)
    tokens = torch.randint(0, 128256, (256,), device="cuda")
    return Work(lambda: op(logits, tokens, 8), logits.nbytes)


OPS: dict[Callable[[], Work], str] = {
    rms_norm: "test_elementwise.py",
    silu_mul: "test_elementwise.py",
    rotate_and_store: "test_elementwise.py",
    decode_even: "test_attention.py",
    decode_skewed: "test_attention.py",
    decode_drafts: "test_attention.py",
    prefill_8k: "test_attention.py",
    prefill_cached: "test_attention.py",
    experts_decode: "test_experts.py",
    experts_decode_many: "test_experts.py",
    experts_prefill: "test_experts.py",
    experts_prefill_many: "test_experts.py",
    draw: "test_sampling.py",
    token_logprobs: "test_sampling.py",
}


def is_green(cases: str) -> bool:
    """Whether these cases pass on this GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(_CASES / cases)]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, check=False).returncode == 0


def seconds(run: Callable[[], Any]) -> float:
    """Median time of a call."""
    from triton.testing import do_bench

    return float(do_bench(run, warmup=50, rep=300, return_mode="median")) / 1e3


def ceilings() -> tuple[float, float]:
    """Bytes per second of a copy, read and written; flop per second of a bf16 product."""
    source = _random(2**30)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / seconds(lambda: target.copy_(source))
    left, right = _random(8192, 8192), _random(8192, 8192)
    return copy, 2 * 8192**3 / seconds(lambda: left @ right)


def _measure(make: Callable[[], Work], copy: float, product: float) -> dict[str, Any]:
    work = make()
    taken = seconds(work.run)
    floor = max(work.num_bytes / copy, work.flops / product)
    row = {"op": make.__name__, "microseconds": taken * 1e6, "share_of_ceiling": floor / taken}
    row["bound"] = "bytes" if work.num_bytes / copy >= work.flops / product else "flops"
    if work.rival is not None:
        row["torch_microseconds"] = seconds(work.rival) * 1e6
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("ops", nargs="*", help="all by default")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.kernels: no CUDA device here, so there is nothing to time.", file=sys.stderr)
        return 2
    chosen = {
        make: cases for make, cases in OPS.items() if not arguments.ops or make.__name__ in arguments.ops
    }
    green = {cases: is_green(cases) for cases in set(chosen.values())}
    copy, product = ceilings()
    print(f"ceilings: copy {copy / 1e9:,.0f} GB/s, bf16 product {product / 1e12:,.0f} Tflop/s")
    rows = []
    for make, cases in chosen.items():
        if not green[cases]:
            print(f"{make.__name__:18} not timed: {cases} fails")
            continue
        row = _measure(make, copy, product)
        rows.append(row)
        rival = f"   torch {row['torch_microseconds']:10.1f} us" if "torch_microseconds" in row else ""
        print(
            f"{row['op']:18} {row['microseconds']:10.1f} us   {row['share_of_ceiling']:5.0%} of {row['bound']}{rival}"
        )
    if arguments.out:
        results = {"device": torch.cuda.get_device_name(), "copy": copy, "product": product, "rows": rows}
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(green.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
