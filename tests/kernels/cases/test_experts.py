"""Experts: the choice of them, the tiles of the sorted pairs, and the grouped products, against plain arithmetic."""

import copy
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from closeness import DTYPES, assert_close
from penstock_kernels import (
    ExpertPart,
    Routing,
    clamped_swiglu,
    gelu_mul,
    grouped_mlp,
    reference,
    route,
    silu_mul,
)
from penstock_kernels.base.devices import runs_kernels

Activate = Callable[[torch.Tensor], torch.Tensor]


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k"), [(0, 4, 2), (1, 1, 1), (9, 63, 8), (5, 128, 5)]
)
def test_route(num_tokens: int, num_experts: int, top_k: int, normalized: bool, device: torch.device) -> None:
    logits = 3 * torch.randn(num_tokens, num_experts + 2, device=device)[:, :num_experts]
    logits[:, 1::5] = logits[:, :1].clone()  # ties
    weights, expert_ids = route(logits, top_k, normalized)
    expected, expected_ids = reference.route(logits.double(), top_k, normalized)
    assert torch.equal(expert_ids, expected_ids)
    assert_close(weights, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_route_of_rounded_logits(dtype: torch.dtype, device: torch.device) -> None:
    logits = torch.randn(7, 40, device=device).to(dtype)
    weights, expert_ids = route(logits, 4)
    expected, expected_ids = reference.route(logits.double(), 4, False)
    assert torch.equal(expert_ids, expected_ids)
    assert_close(weights, expected)


def test_a_row_of_nan_gets_experts_and_weights_of_nan(device: torch.device) -> None:
    logits = torch.randn(3, 6, device=device)
    logits[1, 4] = torch.nan
    weights, expert_ids = route(logits, 3, normalized=True)
    assert weights.isnan().all(1).tolist() == [False, True, False]
    assert ((expert_ids >= 0) & (expert_ids < 6)).all()


def test_a_row_of_nan_gets_experts_of_groups_and_weights_of_nan(device: torch.device) -> None:
    logits, routing = torch.randn(3, 12, device=device), Routing(True, 4, 2, True)
    logits[1] = torch.nan
    weights, expert_ids = route(logits, 3, True, torch.zeros(12, device=device), routing)
    assert weights.isnan().all(1).tolist() == [False, True, False]
    assert ((expert_ids >= 0) & (expert_ids < 12)).all()


def chosen_by_hand(scores: list[float], correction: list[float], top_k: int, routing: Routing) -> list[int]:
    """The experts of one token, one after the other."""
    merit = [score + added for score, added in zip(scores, correction, strict=True)]
    size = len(merit) // routing.num_groups
    groups = [merit[first : first + size] for first in range(0, len(merit), size)]
    worth = [sum(sorted(group)[-2:]) if routing.sums_pairs else max(group) for group in groups]
    best = sorted(range(len(groups)), key=lambda group: -worth[group])[: routing.top_groups]
    open_ids = [expert for expert in range(len(merit)) if expert // size in best]
    return sorted(open_ids, key=lambda expert: -merit[expert])[:top_k]


@pytest.mark.parametrize(
    "routing",
    [
        Routing(),
        Routing(sigmoid=True, scale=2.5),
        Routing(num_groups=4, top_groups=2, scale=0.5),
        Routing(sigmoid=True, num_groups=3, top_groups=1, sums_pairs=True),
    ],
)
@pytest.mark.parametrize("normalized", [False, True])
def test_route_with_a_correction_and_groups(routing: Routing, normalized: bool, device: torch.device) -> None:
    logits, correction = torch.randn(9, 12, device=device), torch.randn(12, device=device) / 2
    weights, expert_ids = route(logits, 3, normalized, correction, routing)
    scores = logits.double().sigmoid() if routing.sigmoid else logits.double().softmax(-1)
    for row in range(len(logits)):
        expected = chosen_by_hand(scores[row].tolist(), correction.tolist(), 3, routing)
        assert expert_ids[row].tolist() == expected
        of_chosen = scores[row, expected]
        of_chosen = of_chosen / of_chosen.sum() if normalized else of_chosen
        assert_close(weights[row], of_chosen * routing.scale)


CHOICES = {
    "none": [],
    "one token": [[3, 0]],
    "experts without tokens": [[1, 3]] * 5 + [[3, 1]] * 40,
    "one expert gets all": [[2]] * 77,
    "every expert twice": [[0, 1, 2, 3, 4]] * 2,
    "one tile exactly": [[4, 1]] * 16,
}


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("choices", list(CHOICES.values())[1:], ids=list(CHOICES)[1:])
def test_tiles_hold_every_pair_once(choices: list[list[int]], rows: int, device: torch.device) -> None:
    if not runs_kernels(device):
        pytest.skip("nothing is sorted")
    from penstock_kernels.gpu.routing import expert_tiles

    flat = [expert for token in choices for expert in token]
    found = expert_tiles(torch.tensor(choices, device=device), 5, rows)
    order, tiles = found.order.tolist(), found.tiles.tolist()
    used = [tile for tile in tiles if tile[0] >= 0]
    assert len(tiles) == min(len(flat), -(-len(flat) // rows) + 5)
    assert tiles[len(used) :] == [tile for tile in tiles if tile[0] < 0], "the idle ones are last"
    assert order == sorted(range(len(flat)), key=lambda pair: flat[pair])
    assert [place for _, first, end in used for place in range(first, end)] == list(range(len(flat)))
    for expert, first, end in used:
        assert 0 < end - first <= rows
        assert {flat[pair] for pair in order[first:end]} == {expert}


class Layer:
    """Experts of random weights: 5 of them, with odd sizes that leave parts of tiles unused."""

    def __init__(self, dim: int, size: int, dtype: torch.dtype, device: torch.device, bias: bool) -> None:
        def random(*shape: int) -> torch.Tensor:
            made: torch.Tensor = torch.randn(shape, device=device) / math.sqrt(shape[-1])
            return made.to(dtype)

        self.gate_up, self.down = random(5, 2 * size, dim), random(5, dim, size)
        self.gate_up_bias = random(5, 2 * size) if bias else None
        self.down_bias = random(5, dim) if bias else None

    def __call__(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        activate: Activate = silu_mul,
        invariant: bool = False,
        part: ExpertPart | None = None,
    ) -> torch.Tensor:
        layers = (self.gate_up, self.down, activate, self.gate_up_bias, self.down_bias)
        return grouped_mlp(x, ids, weights, *layers, invariant, part)

    def part(self, first: int, count: int) -> "Layer":
        """Some of the experts."""
        found = copy.copy(self)
        for name, tensor in vars(self).items():
            setattr(found, name, None if tensor is None else tensor[first : first + count].clone())
        return found

    def exact(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, activate: Activate
    ) -> torch.Tensor:
        """Token by token, in float64."""
        gate_up, down = self.gate_up.double(), self.down.double()
        biases = (self.gate_up_bias, self.down_bias)
        first, second = (None if bias is None else bias.double() for bias in biases)
        result = torch.zeros(len(x), down.shape[1], dtype=torch.float64, device=x.device)
        for token, choices in enumerate(ids.tolist()):
            for expert, weight in zip(choices, weights[token].double(), strict=True):
                hidden = gate_up[expert] @ x[token].double() + (0 if first is None else first[expert])
                output = down[expert] @ activate(hidden[None])[0]
                result[token] += weight * (output if second is None else output + second[expert])
        return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_grouped_mlp(choices: list[list[int]], dtype: torch.dtype, device: torch.device) -> None:
    layer = Layer(70, 40, dtype, device, True)
    ids = torch.tensor(choices, dtype=torch.int64, device=device).view(len(choices), -1 if choices else 2)
    x = torch.randn(len(ids), 90, device=device).to(dtype)[:, :70]
    weights = torch.rand(ids.shape, device=device)
    found = layer(x, ids, weights)
    assert_close(found, layer.exact(x, ids, weights, reference.silu_mul), slack=2)


@pytest.mark.parametrize(
    ("activate", "exact"),
    [
        (gelu_mul, reference.gelu_mul),
        (partial(gelu_mul, tanh=False), partial(reference.gelu_mul, tanh=False)),
        (clamped_swiglu, reference.clamped_swiglu),
    ],
    ids=["gelu_tanh", "gelu", "clamped_swiglu"],
)
def test_grouped_mlp_with_other_activations(
    activate: Activate, exact: Activate, device: torch.device
) -> None:
    layer = Layer(33, 17, torch.float32, device, True)
    x, ids = torch.randn(6, 33, device=device), torch.rand(6, 5, device=device).topk(3).indices
    weights = torch.rand(6, 3, device=device)
    assert_close(layer(x, ids, weights, activate), layer.exact(x, ids, weights, exact), slack=2)


@pytest.mark.parametrize("top_k", range(1, 9))
def test_grouped_mlp_sums_any_number_of_experts(top_k: int, device: torch.device) -> None:
    """A choice may repeat an expert: pairs are what is summed."""
    layer = Layer(20, 10, torch.float16, device, False)
    x = torch.randn(7, 20, device=device).half()
    ids = torch.randint(0, 5, (7, top_k), dtype=torch.int32, device=device)
    weights = torch.rand(7, top_k, device=device).half()
    assert_close(layer(x, ids, weights), layer.exact(x, ids, weights, reference.silu_mul), slack=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_has_the_same_bits_in_any_batch(dtype: torch.dtype, device: torch.device) -> None:
    layer = Layer(70, 35, dtype, device, True)
    x = torch.randn(90, 70, device=device).to(dtype)
    ids = torch.rand(90, 5, device=device).topk(2).indices
    ids[:70] = ids[:1].clone()  # so that two experts take several tiles, and the others few rows of one
    weights = torch.rand(90, 2, device=device)
    whole = layer(x, ids, weights, invariant=True)
    for rows in (slice(0, 1), slice(40, 47), [89, 3, 71, 0]):
        assert torch.equal(layer(x[rows], ids[rows], weights[rows], invariant=True), whole[rows])


def test_a_token_that_is_not_finite_stays_alone(device: torch.device) -> None:
    layer = Layer(64, 32, torch.float32, device, True)
    x, ids = torch.randn(9, 64, device=device), torch.tensor([[1, 2]], device=device).repeat(9, 1)
    x[4, 7] = torch.nan
    found = layer(x, ids, torch.rand(9, 2, device=device))
    assert found.isnan().all(1).tolist() == [row == 4 for row in range(9)]


# Where ranks have some experts each: as many as this, from this one on. One has none, one has all.
PARTS = [(0, 2), (2, 1), (3, 0), (3, 2)]


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_parts_of_the_experts_add_up_to_all(
    choices: list[list[int]], dtype: torch.dtype, invariant: bool, device: torch.device
) -> None:
    layer = Layer(70, 40, dtype, device, True)
    ids = torch.tensor(choices, dtype=torch.int64, device=device).view(len(choices), -1 if choices else 2)
    x, weights = torch.randn(len(ids), 70, device=device).to(dtype), torch.rand(ids.shape, device=device)
    total = torch.zeros(len(ids), 70, dtype=torch.float64, device=device)
    for first, count in PARTS:
        found = layer.part(first, count)(x, ids, weights, invariant=invariant, part=ExpertPart(first, 5))
        of_part = weights * ((ids >= first) & (ids < first + count))
        assert_close(found, layer.exact(x, ids, of_part, reference.silu_mul), slack=2)
        assert found[of_part.sum(1) == 0].eq(0).all(), "nothing is added, to the last bit"
        total += found.double()
    whole = layer(x, ids, weights, invariant=invariant, part=ExpertPart(0, 5))
    assert torch.equal(whole, layer(x, ids, weights, invariant=invariant))
    assert_close(total.to(dtype), layer.exact(x, ids, weights, reference.silu_mul), slack=4)


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("choices", list(CHOICES.values())[1:], ids=list(CHOICES)[1:])
def test_tiles_of_a_part_hold_its_pairs_alone(
    choices: list[list[int]], rows: int, device: torch.device
) -> None:
    if not runs_kernels(device):
        pytest.skip("nothing is sorted")
    from penstock_kernels.gpu.routing import expert_tiles

    flat = [expert for token in choices for expert in token]
    for first, count in PARTS:
        if count:
            found = expert_tiles(torch.tensor(choices, device=device), count, rows, first)
            order, tiles = found.order.tolist(), found.tiles.tolist()
            held = [
                (expert + first, pair)
                for expert, begin, end in tiles
                if expert >= 0
                for pair in order[begin:end]
            ]
            here = [(expert, pair) for pair, expert in enumerate(flat) if first <= expert < first + count]
            assert held == sorted(here)


def test_a_part_beyond_all_experts_is_refused(device: torch.device) -> None:
    layer, x = Layer(20, 10, torch.float32, device, False), torch.randn(1, 20, device=device)
    ids, weights = torch.zeros(1, 1, dtype=torch.int64, device=device), torch.ones(1, 1, device=device)
    for part in (ExpertPart(1, 5), ExpertPart(-1, 9), ExpertPart(0, 4)):
        with pytest.raises(ValueError, match="grouped_mlp: 5 experts are no"):
            layer(x, ids, weights, part=part)


def test_a_captured_graph_holds_for_any_choice(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("graphs are CUDA's")
    layer, x = Layer(64, 32, torch.bfloat16, device, True), torch.randn(9, 64, device=device).bfloat16()
    ids, weights = torch.zeros(9, 2, dtype=torch.int64, device=device), torch.rand(9, 2, device=device)
    layer(x, ids, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = layer(x, ids, weights)
    for choices in ([[4, 1]] * 9, [[token % 5, 2] for token in range(9)]):
        ids.copy_(torch.tensor(choices))
        graph.replay()
        assert torch.equal(found, layer(x, ids, weights))
