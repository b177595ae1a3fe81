"""The positions that an index chooses against plain arithmetic on whole numbers, which every order of sums computes
alike, so that there are equals among the scores; and attention over them against that over all."""

import pytest
import torch
from closeness import DTYPES, assert_close
from penstock_kernels import (
    AttentionSpans,
    DecodeSpans,
    LatentArguments,
    choose_positions,
    latent_attention,
    reference,
)
from penstock_kernels.ops import choose_positions as op

Lens = list[tuple[int, int]]
# A decode, a prompt, drafts behind a cached prefix, nothing, the first token of a sequence.
MIXED = [(1, 90), (37, 37), (3, 300), (0, 0), (1, 1)]


class Case:
    """Queries over a filled cache whose blocks are scattered; nothing but written positions is a number."""

    def __init__(
        self, lens: Lens, device: torch.device, heads: int = 5, dim: int = 16, block: int = 4, width: int = 1
    ) -> None:
        """`width`: of a latent beside each key."""
        self.lens, self.block = lens, block
        counts = [-(-context // block) for _, context in lens]
        free = torch.randperm(sum(counts) + 1).add(1)
        shape = sum(counts) + 2, block, 1
        self.keys, self.latents = (torch.full((*shape, size), torch.nan) for size in (dim, width))
        self.tables = torch.zeros(len(lens), max(counts) + 1, dtype=torch.int32)
        self.places: list[torch.Tensor] = []
        for span, (_, context) in enumerate(lens):
            blocks, free = free[: counts[span]], free[counts[span] :]
            self.tables[span, : len(blocks)] = blocks
            positions = torch.arange(context)
            self.places.append(blocks[positions // block] * block + positions % block)
            self.keys.view(-1, dim)[self.places[-1]] = torch.randint(-2, 3, (context, dim)).float()
            self.latents.view(-1, width)[self.places[-1]] = torch.randn(context, width)
        num_tokens = sum(query for query, _ in lens)
        self.query = torch.randint(-2, 3, (num_tokens, heads, dim)).float()
        # They are divided by this root, which is a whole number.
        self.weights = torch.randint(-2, 3, (num_tokens, heads)) * float(dim) ** 0.5
        for name in ("keys", "latents", "tables", "query", "weights"):
            setattr(self, name, getattr(self, name).to(device))

    def known(self) -> AttentionSpans:
        queries, contexts = (tuple(pair[i] for pair in self.lens) for i in range(2))
        return AttentionSpans(queries, contexts, self.tables, self.block)

    def on_device(self, num_behind: int = 0) -> DecodeSpans:
        """The spans in the form that a graph has, with rows behind the last span."""
        lens = torch.tensor(self.lens, dtype=torch.int32)
        starts = torch.cat((torch.zeros(1, dtype=torch.int32), lens[:, 0].cumsum(0).int()))
        device = self.tables.device
        bounds = max(query for query, _ in self.lens), max(context for _, context in self.lens) + 70
        self.query, self.weights = (
            torch.cat((part, part.new_ones(num_behind, *part.shape[1:])))
            for part in (self.query, self.weights)
        )
        return DecodeSpans(
            starts.to(device), lens[:, 1].contiguous().to(device), self.tables, self.block, *bounds
        )

    def choose(self, spans: AttentionSpans | DecodeSpans, top_k: int) -> DecodeSpans:
        return choose_positions(self.query, self.weights, self.keys, spans, top_k)

    def expected(self, top_k: int) -> list[list[int]]:
        """The chosen positions of every query, in ascending order."""
        found, row = [], 0
        for places, (query_len, context_len) in zip(self.places, self.lens, strict=True):
            for position in range(context_len - query_len, context_len):
                seen = places[: position + 1]
                keys = self.keys.view(-1, self.keys.shape[-1])[seen.to(self.keys.device)].double()
                scores = (self.query[row].double() @ keys.T).relu()
                merit = (self.weights[row].double() * self.query.shape[2] ** -0.5) @ scores
                order = merit.round().cpu().sort(descending=True, stable=True).indices[:top_k]
                found.append(seen[order.sort().values].tolist())
                row += 1
        return found


def chosen_of(spans: DecodeSpans) -> list[list[int]]:
    lens = spans.context_lens.tolist()
    return [row[:length] for row, length in zip(spans.block_tables.tolist(), lens, strict=True)]


@pytest.mark.parametrize("top_k", [1, 20, 64, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_best_are_chosen_and_of_equals_the_first(
    top_k: int, dtype: torch.dtype, device: torch.device
) -> None:
    case = Case(MIXED, device)
    case.keys, case.query = case.keys.to(dtype), case.query.to(dtype)
    expected = case.expected(top_k)
    assert chosen_of(case.choose(case.known(), top_k)) == expected
    on_device = case.on_device(num_behind=3)
    assert chosen_of(case.choose(on_device, top_k)) == [*expected, [], [], []]


@pytest.mark.parametrize(
    ("heads", "dim", "block"), [(1, 4, 1), (3, 64, 48), (64, 16, 16), (70, 256, 64), (2, 1, 3)]
)
def test_shapes(heads: int, dim: int, block: int, device: torch.device) -> None:
    case = Case([(1, 70), (2, 33)], device, heads, dim, block)
    assert chosen_of(case.choose(case.known(), 16)) == case.expected(16)


def test_one_query_over_many_positions(device: torch.device) -> None:
    """More than a program reads at once, and more of equal scores than are wanted."""
    case = Case([(1, 5000)], device, heads=1, dim=4)
    assert chosen_of(case.choose(case.known(), 2100)) == case.expected(2100)


def test_queries_come_in_parts_where_contexts_are_long(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(MIXED, device)
    expected = case.expected(20)
    monkeypatch.setattr(op, "_MOST_SCORES", 1000)
    assert chosen_of(case.choose(case.known(), 20)) == expected


def test_nothing_is_chosen_for_nobody(device: torch.device) -> None:
    case = Case([(0, 0)], device)
    assert chosen_of(case.choose(case.known(), 8)) == []
    assert chosen_of(case.choose(case.on_device(2), 8)) == [[], []]


@pytest.mark.parametrize("num_parts", [1, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_over_all_that_is_seen_is_that_over_all(
    num_parts: int, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chosen positions become spans for the same attention, which on a GPU takes many queries in parts."""
    case = Case(MIXED, device, width=48)
    num_tokens, heads = len(case.query), 3
    monkeypatch.setattr(
        "penstock_kernels.gpu.latent_attention._MOST_TOKENS", -(-num_tokens // num_parts), raising=False
    )
    query, key_up, value_up = (
        torch.randn(*shape, device=device).to(dtype)
        for shape in ((num_tokens, heads, 24), (heads, 40, 16), (heads, 12, 40))
    )
    latents = case.latents.to(dtype)
    chosen = case.choose(case.known(), 300)
    by_position = latents.view(-1, 1, 1, 48)
    found = latent_attention(query, by_position, key_up, value_up, chosen, 0.2)
    exact = latents.double(), key_up.double(), value_up.double()
    expected = reference.latent_attention(LatentArguments(query.double(), *exact, case.known(), 0.2))
    assert_close(found, expected, 2.0)
