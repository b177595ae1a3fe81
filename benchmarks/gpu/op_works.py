"""The ops of a step other than attention: norms, activations, rotation, sampling, experts."""

from functools import partial

import penstock_kernels as ops
import torch
from penstock_kernels.base.quantized import rounding_on_gpu
from torch.nn.functional import rms_norm, silu

from benchmarks.gpu.works import FP8, Case, Sizes, Work, random

_ELEMENTWISE, _SAMPLING, _EXPERTS = "test_elementwise.py", "test_sampling.py", "test_experts.py"
_PRODUCTS, _ADAPTERS, _SUMS = "test_fused_linear.py", "test_adapters.py", "test_all_reduce.py"
_QUANTIZED, _ROUNDED = "test_quantized.py", "test_rounded_products.py"
# The rank of each projection of an adapter.
_RANK = 16
_TORCH = ("PyTorch",)


def cases(sizes: Sizes) -> list[Case]:
    """The ops that an 8B Llama runs beside its products, then experts."""
    rows, tokens = sizes.rows, sizes.tokens
    qkv = (sizes.heads + 2 * sizes.kv_heads) * sizes.dim
    found = [
        Case(f"rms_norm with residual, {tokens}", partial(_rms_norm, sizes, tokens), _ELEMENTWISE, _TORCH),
        Case(f"rms_norm with residual, {rows}", partial(_rms_norm, sizes, rows), _ELEMENTWISE, _TORCH),
        Case(f"sum of 8 shares and rms_norm, {min(rows, 64)}", partial(_sum_and_norm, sizes), _SUMS, _TORCH),
        Case(f"silu_mul, {tokens}", partial(_silu_mul, sizes, tokens), _ELEMENTWISE, _TORCH),
        Case(f"rotate_and_store, {tokens}", partial(_rotate_and_store, sizes, tokens), _ELEMENTWISE),
        Case(f"embedding, {tokens}", partial(_embedding, sizes, tokens), _ELEMENTWISE, _TORCH),
        Case(f"draw, {rows}", partial(_draw, sizes, rows), _SAMPLING),
        Case("draw, 1", partial(_draw, sizes, 1), _SAMPLING),
        Case(f"token_logprobs, {rows}", partial(_token_logprobs, sizes, rows), _SAMPLING),
    ]
    for rows, count in sizes.adapters:
        for name, columns, parts in (("qkv", qkv, 3), ("gate and up", 2 * sizes.inner, 2)):
            make = partial(_adapters, sizes, rows, count, columns, parts)
            title = f"add_adapters to {name}, {count} of rank {_RANK}, {rows} rows"
            found.append(Case(title, make, _ADAPTERS))
    for rows in sizes.few_rows:
        for name, columns, is_gated in (("qkv", qkv, False), ("gate and up", 2 * sizes.inner, True)):
            make = partial(_product, sizes, rows, columns, is_gated)
            found.append(Case(f"product of {name}, {rows} rows", make, _PRODUCTS, _TORCH))
    for rows in (*sizes.few_rows, sizes.tokens):
        for name, is_rounded in (("fp8", False), ("fp8 by rows of fp8", True)):
            make = partial(_product_of_float8, sizes, rows, is_rounded)
            title = f"product of gate and up in {name}, {rows} rows"
            found.append(Case(title, make, _ROUNDED if is_rounded else _QUANTIZED, _TORCH))
    for number, count, top_k, *widths in sizes.experts:
        make = partial(_experts, sizes, number, count, top_k, *widths)
        found.append(Case(f"{top_k} of {count} experts, {number} tokens", make, _EXPERTS))
        make = partial(_experts_of_few_bits, sizes, number, count, top_k, *widths)
        found.append(Case(f"{top_k} of {count} experts in mxfp4, {number} tokens", make, _QUANTIZED))
    return found


def _rms_norm(sizes: Sizes, tokens: int) -> Work:
    x, residual = (random(sizes, tokens, sizes.hidden) for _ in range(2))
    weight = random(sizes, sizes.hidden)
    rival = lambda: rms_norm(residual.add_(x), (sizes.hidden,), weight, 1e-5)  # noqa: E731
    return Work(
        lambda: ops.rms_norm(x, weight, 1e-5, residual), 4 * x.nbytes, rivals={"PyTorch": lambda: rival}
    )


def _sum_and_norm(sizes: Sizes) -> Work:
    """The sum over 8 ranks and the norm, as one rank computes them; the data of all ranks is there, on this device."""
    rows, row_bytes = min(sizes.rows, 64), 2 * sizes.hidden
    pages = torch.zeros(8, ops.Peers.page_bytes(8, rows, row_bytes), dtype=torch.uint8, device=sizes.device)
    peers = ops.Peers.of(0, pages.unbind(), rows, row_bytes)
    peers.flags(0).fill_(2**62)
    x, residual = (random(sizes, rows, sizes.hidden) for _ in range(2))
    weight, shares = random(sizes, sizes.hidden), random(sizes, 8, rows, sizes.hidden)
    rival = lambda: rms_norm(residual.add_(shares.sum(0)), (sizes.hidden,), weight, 1e-5)  # noqa: E731
    return Work(
        lambda: ops.all_reduce_add_rms_norm(x, weight, 1e-5, residual, 0.0, peers),
        (1 + 1 + 8 + 3) * x.nbytes,
        rivals={"PyTorch": lambda: rival},
    )


def _product(sizes: Sizes, rows: int, columns: int, is_gated: bool) -> Work:
    """A norm, the product and perhaps an activation by our kernels; the rival is what the server runs else. Where ours
    is faster for all of these rows, it is to be in `measured_products`."""
    x, residual = (random(sizes, rows, sizes.hidden) for _ in range(2))
    norm = ops.InputNorm(random(sizes, sizes.hidden), 1e-5, residual)
    weight = random(sizes, columns, sizes.hidden)

    def ours() -> torch.Tensor:
        from penstock_kernels.gpu.fused_linear import fused_linear

        return fused_linear(x, weight, None, norm, is_gated)

    def theirs() -> torch.Tensor:
        normed = ops.rms_norm(x, norm.weight, norm.eps, residual)
        product = ops.linear(normed, weight)
        return ops.silu_mul(product) if is_gated else product

    return Work(ours, weight.nbytes + 3 * x.nbytes, rivals={"PyTorch": lambda: theirs})


def _product_of_float8(sizes: Sizes, rows: int, is_rounded: bool) -> Work:
    """Weights in blocks of 128; the rival multiplies as many in 16 bits."""
    x, weight = random(sizes, rows, sizes.hidden), random(sizes, 2 * sizes.inner, sizes.hidden)
    blocks = (-(-length // 128) for length in weight.shape)
    grid = ops.Float8Grid(weight.to(FP8), torch.ones(*blocks, device=sizes.device), 128, 128)
    matrix = rounding_on_gpu(grid) if is_rounded else grid
    num_bytes = grid.nbytes + x.nbytes + 2 * rows * len(weight)
    return Work(
        lambda: ops.quantized_linear(x, matrix),
        num_bytes,
        # Products of 8 bits take half of the time of those of 16, which the floor counts.
        2 * rows * weight.numel() / (2 if is_rounded else 1),
        {"PyTorch": lambda: lambda: x @ weight.T},
    )


def _adapters(sizes: Sizes, rows: int, count: int, columns: int, num_parts: int) -> Work:
    """Adds adapters to one layer output; rows are divided evenly among them. The floor: their matrices once, or the
    products."""
    table = ops.AdapterTable(count, torch.device(sizes.device))
    first = (torch.arange(columns, device=sizes.device) * num_parts // columns * _RANK).int()
    for number in range(count):
        down, up = random(sizes, num_parts * _RANK, sizes.hidden), random(sizes, _RANK, columns)
        table.place(number, ops.AdapterWeights(down, up, first))
    x, output = random(sizes, rows, sizes.hidden), random(sizes, rows, columns)
    numbers = torch.arange(rows, device=sizes.device) % count
    used = [entry for entry in table.entries[:rows] if entry is not None]
    flops = 2 * rows * _RANK * (num_parts * sizes.hidden + columns)
    # Sorted anew each time, as for the first layer of a step.
    return Work(
        lambda: ops.add_adapters(output, x, ops.AdapterRows(numbers), table),
        sum(entry.num_bytes for entry in used) + x.nbytes + 2 * output.nbytes,
        flops,
    )


def _silu_mul(sizes: Sizes, tokens: int) -> Work:
    x, inner = random(sizes, tokens, 2 * sizes.inner), sizes.inner
    rival = lambda: silu(x[:, :inner]) * x[:, inner:]  # noqa: E731
    return Work(lambda: ops.silu_mul(x), 1.5 * x.nbytes, rivals={"PyTorch": lambda: rival})


def _rotate_and_store(sizes: Sizes, tokens: int) -> Work:
    heads = random(sizes, tokens, sizes.heads + 2 * sizes.kv_heads, sizes.dim)
    cos, sin = (random(sizes, tokens, sizes.dim) for _ in range(2))
    num_blocks = 2 * -(-tokens // sizes.block)
    key_cache, value_cache = (
        random(sizes, num_blocks, sizes.block, sizes.kv_heads, sizes.dim) for _ in range(2)
    )
    positions = torch.randperm(num_blocks * sizes.block, device=sizes.device)[:tokens]
    return Work(
        lambda: ops.rotate_and_store(heads, cos, sin, key_cache, value_cache, positions),
        2 * heads.nbytes + 2 * cos.nbytes,
    )


def _embedding(sizes: Sizes, tokens: int) -> Work:
    table = random(sizes, sizes.vocab, sizes.hidden)
    token_ids = torch.randint(0, sizes.vocab, (tokens,), device=sizes.device)
    rival = lambda: torch.nn.functional.embedding(token_ids, table)  # noqa: E731
    moved = 2 * tokens * sizes.hidden * table.element_size()
    return Work(lambda: ops.embedding(token_ids, table), moved, rivals={"PyTorch": lambda: rival})


def _draw(sizes: Sizes, rows: int) -> Work:
    """Temperature, top-k and top-p of every row."""
    scores = 3 * random(sizes, rows, sizes.vocab, dtype=torch.float32)

    def full(value: float) -> torch.Tensor:
        return torch.full((rows,), value, device=sizes.device)

    seeds = torch.randint(0, 2**62, (rows,), device=sizes.device)
    params = ops.DrawParams(full(0.8), full(50).int(), full(0.95), full(0.0), full(1.0), seeds, seeds)
    return Work(lambda: ops.draw(scores, params), scores.nbytes)


def _token_logprobs(sizes: Sizes, rows: int) -> Work:
    logits = random(sizes, rows, sizes.vocab, dtype=torch.float32)
    tokens = torch.randint(0, sizes.vocab, (rows,), device=sizes.device)
    return Work(lambda: ops.token_logprobs(logits, tokens, 8), logits.nbytes)


def _experts(sizes: Sizes, tokens: int, num_experts: int, top_k: int, dim: int, inner: int) -> Work:
    """The floor: reading the weights of the chosen experts once, or the matrix products."""
    gate_up, down = random(sizes, num_experts, 2 * inner, dim), random(sizes, num_experts, dim, inner)
    logits, x = random(sizes, tokens, num_experts), random(sizes, tokens, dim)

    def run() -> torch.Tensor:
        weights, expert_ids = ops.route(logits, top_k, normalized=True)
        return ops.grouped_mlp(x, expert_ids, weights, gate_up, down, ops.silu_mul)

    num_bytes = (gate_up.nbytes + down.nbytes) * _share(logits, top_k) + 2 * x.nbytes
    return Work(run, num_bytes, 6 * tokens * top_k * dim * inner)


def _experts_of_few_bits(
    sizes: Sizes, tokens: int, num_experts: int, top_k: int, dim: int, inner: int
) -> Work:
    """`_experts` with 4 bits for each weight and an 8-bit scale for each 32 weights."""
    gate_up = ops.ExpertMatrices(
        (_mxfp4(sizes, inner, dim), _mxfp4(sizes, inner, dim)) for _ in range(num_experts)
    )
    down = ops.ExpertMatrices(_mxfp4(sizes, dim, inner) for _ in range(num_experts))
    logits, x = random(sizes, tokens, num_experts), random(sizes, tokens, dim)

    def run() -> torch.Tensor:
        weights, expert_ids = ops.route(logits, top_k, normalized=True)
        return ops.quantized_grouped_mlp(x, expert_ids, weights, gate_up, down, ops.silu_mul)

    of_one = down[0].nbytes + sum(part.nbytes for part in gate_up[0])
    num_bytes = of_one * num_experts * _share(logits, top_k) + 2 * x.nbytes
    return Work(run, num_bytes, 6 * tokens * top_k * dim * inner)


def _mxfp4(sizes: Sizes, rows: int, columns: int) -> ops.TableBlocks:
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, device=sizes.device)
    scales = torch.full((rows, columns // 32), 120, dtype=torch.uint8, device=sizes.device)
    table = torch.linspace(-6.0, 6.0, 16, device=sizes.device)
    return ops.TableBlocks(codes, table, scales.view(torch.float8_e8m0fnu), columns, 32)


def _share(logits: torch.Tensor, top_k: int) -> float:
    """The share of the experts that at least one token chooses."""
    chosen = ops.route(logits, top_k).expert_ids.flatten()
    return int(chosen.bincount().count_nonzero()) / logits.shape[1]
