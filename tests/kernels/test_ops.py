"""Every public op against arithmetic written out plainly, at sizes off powers of two."""

import math

import pytest
import torch
from penstock_kernels import (
    AttentionSpans,
    Routing,
    Scoring,
    apply_rotary,
    clamped_swiglu,
    grouped_mlp,
    paged_attention,
    rms_norm,
    route,
    route_near,
    silu_mul,
    store_kv,
    write_runs,
)

NAN = float("nan")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 63])
def test_rms_norm_adds_the_residual_in_place(rows: int, dtype: torch.dtype) -> None:
    x, residual = torch.randn(rows, 80).to(dtype), torch.randn(rows, 80).to(dtype)
    weight = torch.randn(80).to(dtype)
    total = residual + x
    expected = total.float() / (total.float().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.float()
    got = rms_norm(x, weight, 1e-5, residual)
    torch.testing.assert_close(
        got.float(), expected, atol=0.05 if dtype == torch.bfloat16 else 1e-5, rtol=1e-2
    )
    assert torch.equal(residual, total)


def test_rms_norm_of_heads_uses_a_weight_per_head() -> None:
    heads, weight = torch.randn(7, 5, 18), torch.randn(5, 18)
    expected = heads / (heads.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    torch.testing.assert_close(rms_norm(heads, weight, 1e-6), expected)


@pytest.mark.parametrize("rotary_dim", [18, 10])
def test_rotary_rotates_pairs_by_their_angle(rotary_dim: int) -> None:
    heads, angles = torch.randn(5, 3, 18), torch.randn(5, rotary_dim // 2)
    cos, sin = angles.cos(), angles.sin()
    got = apply_rotary(heads, torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1))
    half = rotary_dim // 2
    pairs = torch.complex(heads[..., :half], heads[..., half:rotary_dim])
    rotated = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    expected = torch.cat((rotated.real, rotated.imag, heads[..., rotary_dim:]), dim=-1)
    torch.testing.assert_close(got, expected)


def test_silu_mul_gates_the_second_half() -> None:
    gate, up = torch.randn(3, 11), torch.randn(3, 11)
    torch.testing.assert_close(silu_mul(torch.cat((gate, up), 1)), gate * gate.sigmoid() * up)


def test_clamped_swiglu_limits_both_halves() -> None:
    gate, up = torch.tensor([[9.0, -9.0, 1.0]]), torch.tensor([[9.0, -9.0, 0.5]])
    expected = [
        7 * 8 / (1 + math.exp(-1.702 * 7)),
        -9 * -6 / (1 + math.exp(1.702 * 9)),
        1.5 / (1 + math.exp(-1.702)),
    ]
    torch.testing.assert_close(clamped_swiglu(torch.cat((gate, up), 1)), torch.tensor([expected]))


@pytest.mark.parametrize(("num_tokens", "invariant"), [(0, False), (1, False), (7, False), (7, True)])
def test_grouped_mlp_sums_a_token_s_experts(num_tokens: int, invariant: bool) -> None:
    x, gate_up, down = torch.randn(num_tokens, 6), torch.randn(5, 10, 6), torch.randn(5, 6, 5)
    biases = torch.randn(5, 10), torch.randn(5, 6)
    ids = torch.rand(num_tokens, 5).topk(3).indices
    weights = torch.rand(num_tokens, 3)
    got = grouped_mlp(x, ids, weights, gate_up, down, silu_mul, *biases, invariant)
    assert got.shape == x.shape
    for token in range(num_tokens):
        expected = torch.zeros(6)
        for expert, weight in zip(ids[token].tolist(), weights[token], strict=True):
            hidden = silu_mul(gate_up[expert] @ x[token] + biases[0][expert])
            expected += weight * (down[expert] @ hidden + biases[1][expert])
        torch.testing.assert_close(got[token], expected)


def test_route_takes_the_likeliest_and_of_equal_ones_the_first() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    weights, expert_ids = route(logits, 3)
    assert expert_ids.tolist() == [[1, 2, 3], [0, 1, 2]]
    torch.testing.assert_close(weights, logits.softmax(-1).gather(1, expert_ids))
    normalized, _ = route(logits, 3, normalized=True)
    torch.testing.assert_close(normalized, weights / weights.sum(1, keepdim=True))


def test_route_near_weighs_each_choice_among_those_near_it() -> None:
    distance = 0.2
    logits = torch.cat((torch.randn(40, 7), -torch.rand(20, 7), torch.zeros(1, 7)))
    weights, expert_ids = route_near(logits, 3, distance)
    for scores, its_weights, its_ids in zip(
        logits.tolist(), weights.tolist(), expert_ids.tolist(), strict=True
    ):
        left = dict(enumerate(scores))
        for weight, chosen in zip(its_weights, its_ids, strict=True):
            best = max(left.values())
            assert chosen == min(expert for expert, score in left.items() if score == best)
            near = [it for it in left.values() if best - it <= distance * max(abs(it), best)]
            assert weight == pytest.approx(1 / sum(math.exp(it - best) for it in near), abs=1e-5)
            del left[chosen]


def test_route_and_grouped_mlp_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="route_near: top_k 5 of 4 experts"):
        route_near(torch.zeros(2, 4), 5, 0.1)
    with pytest.raises(ValueError, match=r"distance -0\.1 must not be below 0"):
        route_near(torch.zeros(2, 4), 1, -0.1)
    with pytest.raises(ValueError, match="top_k 5 of 4 experts"):
        route(torch.zeros(2, 4), 5)
    with pytest.raises(ValueError, match="top_k 3 of 2 experts"):
        route(torch.zeros(2, 4), 3, routing=Routing(num_groups=2))
    with pytest.raises(ValueError, match="1 of 3 groups of 4 experts"):
        route(torch.zeros(2, 4), 1, routing=Routing(num_groups=3))
    with pytest.raises(ValueError, match="correction must be float32"):
        route(torch.zeros(2, 4), 1, correction=torch.zeros(3))
    x, ids, weights = torch.zeros(2, 6), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
    experts = torch.zeros(5, 10, 6), torch.zeros(5, 6, 5)
    with pytest.raises(ValueError, match=r"expert_ids are torch\.float32"):
        grouped_mlp(x, weights, weights, *experts, silu_mul)
    with pytest.raises(ValueError, match="down must be contiguous"):
        grouped_mlp(x, ids, weights, experts[0], torch.zeros(5, 5, 6).transpose(1, 2), silu_mul)
    with pytest.raises(ValueError, match=r"down_bias \(5, 7\)"):
        grouped_mlp(x, ids, weights, *experts, silu_mul, None, torch.zeros(5, 7))


def test_grouped_mlp_names_shapes_that_do_not_fit() -> None:
    x, ids, weights = torch.zeros(2, 6), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
    with pytest.raises(ValueError, match=r"gate_up \(5, 10, 6\), down \(5, 6, 4\)"):
        grouped_mlp(x, ids, weights, torch.zeros(5, 10, 6), torch.zeros(5, 6, 4), silu_mul)


def test_store_kv_writes_the_mapped_places_and_no_other() -> None:
    key, value = torch.randn(3, 2, 6), torch.randn(3, 2, 6)
    key_cache, value_cache = torch.full((2, 5, 4, 2, 6), NAN)
    store_kv(key, value, key_cache, value_cache, torch.tensor([7, 0, 19]))
    for row, (block, offset) in enumerate([(1, 3), (0, 0), (4, 3)]):
        assert torch.equal(key_cache[block, offset], key[row])
        assert torch.equal(value_cache[block, offset], value[row])
    assert key_cache.isnan().all(-1).sum() == value_cache.isnan().all(-1).sum() == 5 * 4 * 2 - 3 * 2


class PagedCase:
    """Random spans in a cache that holds NaN wherever nothing was stored."""

    def __init__(
        self, lens: list[tuple[int, int]], block_size: int = 4, heads: tuple[int, int] = (6, 2)
    ) -> None:
        self.lens = lens
        num_heads, num_kv_heads = heads
        dim = 10
        needed = [-(-context // block_size) for _, context in lens]
        num_blocks = sum(needed) + 3
        self.key_cache, self.value_cache = torch.full((2, num_blocks, block_size, num_kv_heads, dim), NAN)
        self.query = torch.randn(sum(length for length, _ in lens), num_heads, dim)
        order = torch.randperm(num_blocks).tolist()
        tables = torch.full((len(lens), max(needed) + 1), num_blocks - 1, dtype=torch.int32)
        self.keys, self.values = [], []
        for row, (_, context) in enumerate(lens):
            blocks = [order.pop() for _ in range(needed[row])]
            tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
            key, value = torch.randn(2, context, num_kv_heads, dim)
            places = torch.tensor(
                [blocks[p // block_size] * block_size + p % block_size for p in range(context)]
            )
            store_kv(key, value, self.key_cache, self.value_cache, places)
            self.keys.append(key)
            self.values.append(value)
        self.tables = tables
        self.block_size = block_size

    def spans(self, unbatched: bool = False) -> AttentionSpans:
        query_lens, context_lens = zip(*self.lens, strict=True)
        return AttentionSpans(query_lens, context_lens, self.tables, self.block_size, unbatched)

    def expected(self, scale: float, window: int | None, soft_cap: float | None) -> torch.Tensor:
        rows, first = [], 0
        for (length, context), key, value in zip(self.lens, self.keys, self.values, strict=True):
            for offset in range(length):
                position = context - length + offset
                low = 0 if window is None else max(0, position + 1 - window)
                rows.append(
                    self._row(
                        self.query[first + offset], key, value, slice(low, position + 1), scale, soft_cap
                    )
                )
            first += length
        return torch.stack(rows)

    def _row(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        seen: slice,
        scale: float,
        cap: float | None,
    ) -> torch.Tensor:
        group = query.shape[0] // key.shape[1]
        heads = []
        for head in range(query.shape[0]):
            scores = key[seen, head // group] @ query[head] * scale
            if cap is not None:
                scores = cap * (scores / cap).tanh()
            heads.append(scores.softmax(0) @ value[seen, head // group])
        return torch.stack(heads)


CASES = {
    "one decode": [(1, 9)],
    "fresh prompt": [(13, 13)],
    "single token": [(1, 1)],
    "later chunk": [(5, 17)],
    "decodes of all lengths": [(1, n) for n in (1, 2, 7, 63, 64, 65, 130, 80)],
    "mixed": [(3, 3), (1, 70), (6, 21), (1, 1), (1, 300), (2, 12)],
}


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("case", CASES)
def test_paged_attention(case: str, window: int | None, soft_cap: float | None, unbatched: bool) -> None:
    paged = PagedCase(CASES[case])
    scoring = Scoring(0.3, window, soft_cap)
    got = paged_attention(paged.query, paged.key_cache, paged.value_cache, paged.spans(unbatched), scoring)
    torch.testing.assert_close(got, paged.expected(0.3, window, soft_cap), atol=1e-5, rtol=1e-4)
    assert got.is_contiguous()


def test_a_broken_neighbour_harms_nobody() -> None:
    paged = PagedCase([(1, 8), (1, 11), (4, 9)])
    expected = paged.expected(0.3, None, None)
    broken = paged.tables[1, :3].long()
    paged.key_cache[broken] = NAN
    got = paged_attention(paged.query, paged.key_cache, paged.value_cache, paged.spans(), Scoring(0.3))
    torch.testing.assert_close(got[[0, 2, 3, 4, 5]], expected[[0, 2, 3, 4, 5]], atol=1e-5, rtol=1e-4)
    assert got[1].isnan().all()


def test_layers_share_the_work_map() -> None:
    paged = PagedCase([(1, 8), (4, 9)])
    spans = paged.spans()
    paged_attention(paged.query, paged.key_cache, paged.value_cache, spans, Scoring(1 / math.sqrt(10)))
    assert spans.shared((Scoring(1.0).reach, torch.float32), lambda: pytest.fail("built twice"))


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("query", {"query": torch.zeros(3, 6, 10)}),
        ("cache", {"key_cache": torch.zeros(4, 4, 4, 10), "value_cache": torch.zeros(4, 4, 4, 10)}),
        ("against a cache of", {"query": torch.zeros(1, 6, 10, dtype=torch.bfloat16)}),
        ("window", {"scoring": Scoring(1.0, window=0)}),
        ("soft_cap", {"scoring": Scoring(1.0, soft_cap=-1.0)}),
    ],
)
def test_paged_attention_refuses_what_does_not_fit(message: str, arguments: dict[str, object]) -> None:
    paged = PagedCase([(1, 8)])
    given = {"query": paged.query, "key_cache": paged.key_cache, "value_cache": paged.value_cache}
    with pytest.raises(ValueError, match=message):
        paged_attention(**{**given, "spans": paged.spans(), "scoring": Scoring(1.0), **arguments})  # type: ignore[arg-type]


def test_other_ops_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="weight"):
        rms_norm(torch.zeros(2, 8), torch.zeros(9), 1e-5)
    with pytest.raises(ValueError, match="odd"):
        silu_mul(torch.zeros(2, 7))
    with pytest.raises(ValueError, match="rotary_dim"):
        apply_rotary(torch.zeros(2, 3, 8), torch.zeros(2, 10), torch.zeros(2, 10))
    cache = torch.zeros(2, 4, 1, 8)
    with pytest.raises(ValueError, match="cache_positions"):
        store_kv(torch.zeros(1, 1, 8), torch.zeros(1, 1, 8), cache, cache, torch.zeros(1, dtype=torch.int32))


def test_write_runs_takes_runs_in_any_order_of_values() -> None:
    target, values = torch.zeros(8, dtype=torch.int32), torch.arange(10, 16, dtype=torch.int32)
    write_runs(target, values, torch.tensor([[4, 0, 2], [1, 5, 3], [0, 7, 0]], dtype=torch.int32), 3)
    assert target.tolist() == [14, 15, 0, 0, 0, 11, 12, 13]
    write_runs(target, values, torch.zeros(0, 3, dtype=torch.int32), 0)
    assert target.tolist() == [14, 15, 0, 0, 0, 11, 12, 13]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("target", {"target": torch.zeros(8, dtype=torch.int64)}),
        ("values", {"values": torch.zeros(2, 3, dtype=torch.int32)}),
        ("runs", {"runs": torch.zeros(2, 4, dtype=torch.int32)}),
        ("runs", {"runs": torch.zeros(3, 2, dtype=torch.int32).T}),
        ("max_len", {"max_len": -1}),
    ],
)
def test_write_runs_names_what_does_not_fit(name: str, changes: dict[str, object]) -> None:
    integers = {"target": torch.zeros(8), "values": torch.zeros(4), "runs": torch.zeros(1, 3)}
    given = {key: tensor.int() for key, tensor in integers.items()} | {"max_len": 3} | changes
    with pytest.raises(ValueError, match=f"write_runs: {name}"):
        write_runs(**given)  # type: ignore[arg-type]
