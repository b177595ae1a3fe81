"""Attention over latents against its reference in float64, over a pool in which everything unused is NaN."""

from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
import torch
from closeness import DTYPES, assert_close
from penstock_kernels import (
    AttentionSpans,
    DecodeSpans,
    LatentArguments,
    latent_attention,
    latent_parts_bytes,
    reference,
)
from penstock_kernels.base.devices import runs_kernels

SCALE = 0.1
Lens = list[tuple[int, int]]


@dataclass(frozen=True)
class Shape:
    """Heads; numbers of a latent, of what is rotated, of the rest of a query and of a value; positions of a block."""

    heads: int = 4
    rank: int = 32
    rope: int = 16
    nope: int = 16
    value: int = 16
    block: int = 16
    dtype: torch.dtype = torch.float32


class Case:
    """A filled cache and the queries of a step. Blocks are scattered; nothing but written positions is a number."""

    def __init__(self, shape: Shape, lens: Lens, device: torch.device) -> None:
        """lens: query and context length of every span."""
        self.shape, self.lens = shape, lens
        counts = [-(-context // shape.block) for _, context in lens]
        width = shape.rank + shape.rope
        self.cache = torch.full((sum(counts) + 2, shape.block, 1, width), float("nan"))
        # Block 0 stays poison: tables are padded with it.
        free = torch.randperm(sum(counts) + 1).add(1)
        self.tables = torch.zeros(len(lens), max(counts, default=0) + 1, dtype=torch.int32)
        for span, (_, context) in enumerate(lens):
            blocks, free = free[: counts[span]], free[counts[span] :]
            self.tables[span, : len(blocks)] = blocks
            positions = torch.arange(context)
            where = blocks[positions // shape.block], positions % shape.block, 0
            self.cache[where] = torch.randn(context, width)
        num_tokens = sum(query for query, _ in lens)
        self.query = torch.randn(num_tokens, shape.heads, shape.nope + shape.rope)
        self.key_up = torch.randn(shape.heads, shape.rank, shape.nope) / shape.nope**0.5
        self.value_up = torch.randn(shape.heads, shape.value, shape.rank) / shape.rank**0.5
        for name in ("cache", "tables", "query", "key_up", "value_up"):
            tensor = getattr(self, name).to(device)
            setattr(self, name, tensor.to(shape.dtype) if tensor.is_floating_point() else tensor)

    def spans(self) -> AttentionSpans:
        queries, contexts = (tuple(pair[i] for pair in self.lens) for i in range(2))
        return AttentionSpans(queries, contexts, self.tables, self.shape.block)

    def device_spans(self, num_prompts: int = 0) -> DecodeSpans:
        """The spans in the form that a graph has; spans longer than 8 tokens are prompts."""
        lens = torch.tensor(self.lens, dtype=torch.int32).view(-1, 2)
        starts = torch.cat((torch.zeros(1, dtype=torch.int32), lens[:, 0].cumsum(0).int()))
        longest = min(max(query for query, _ in self.lens), 8)
        bounds = longest, max(context for _, context in self.lens)
        numbers = starts.to(self.query.device), lens[:, 1].contiguous().to(self.query.device)
        return DecodeSpans(*numbers, self.tables, self.shape.block, *bounds, num_prompts=num_prompts)

    def attend(self, spans: AttentionSpans | DecodeSpans) -> torch.Tensor:
        return latent_attention(self.query, self.cache, self.key_up, self.value_up, spans, SCALE)

    def expected(self) -> torch.Tensor:
        ups = self.key_up.double(), self.value_up.double()
        exact = LatentArguments(self.query.double(), self.cache.double(), *ups, self.spans(), SCALE)
        return reference.latent_attention(exact)


def check(case: Case) -> None:
    """Eager, and as a graph calls it. Products in 16 bits round what is between them."""
    slack, expected = (2.0 if case.shape.dtype == torch.float32 else 1.0), case.expected()
    num_prompts = sum(query > 8 for query, _ in case.lens)
    assert_close(case.attend(case.spans()), expected, slack)
    assert_close(case.attend(case.device_spans(num_prompts)), expected, slack)


DECODES = [(1, 1), (1, 63), (1, 64), (1, 300)]
DRAFTS = [(8, 8), (3, 80), (1, 65), (5, 140)]
MIXED = [(20, 33), (1, 80), (9, 9), (12, 70)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lens", [DECODES, DRAFTS, MIXED], ids=["decodes", "drafts", "mixed"])
def test_spans(lens: Lens, dtype: torch.dtype, device: torch.device) -> None:
    check(Case(Shape(dtype=dtype), lens, device))


@pytest.mark.parametrize(
    "shape",
    [
        Shape(heads=3, rank=20, rope=6, nope=10, value=9, block=4),
        Shape(heads=16, rank=512, rope=64, nope=8, value=8, block=64),
        Shape(heads=40, rank=24, rope=8, block=48),
        Shape(heads=1, rank=16, rope=2, nope=1, value=1, block=1),
    ],
    ids=lambda shape: f"{shape.heads}x{shape.rank}+{shape.rope}-block{shape.block}",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes(shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
    check(Case(replace(shape, dtype=dtype), [(1, 70), (2, 3), (9, 20)], device))


def test_empty_spans_and_rows_behind_the_last(device: torch.device) -> None:
    """Spans without tokens or context, as those that pad a graph."""
    case = Case(Shape(), [(1, 1), (0, 40), (1, 200), (1, 0), (1, 0)], device)
    found = case.attend(case.device_spans())
    case.lens = case.lens[:3]
    case.query, case.tables = case.query[:2], case.tables[:3]
    assert_close(found[:2], case.expected(), 2.0)
    assert_close(case.attend(case.spans()), case.expected(), 2.0)
    empty = Case(Shape(), [], device)
    assert empty.attend(empty.spans()).shape == (0, 4, 16)


def test_one_long_sequence_is_divided(device: torch.device) -> None:
    check(Case(Shape(heads=2), [(1, 5), (1, 1000), (2, 6)], device))


@pytest.mark.parametrize("shared_bytes", [101_376, 232_448], ids=["sm_89", "sm_90"])
def test_tiles_of_other_processors(
    shared_bytes: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not runs_kernels(device):
        pytest.skip("there is no kernel")
    from penstock_kernels.gpu.attention_parts import empty_parts
    from penstock_kernels.gpu.tiles import Processor

    def watched(query: torch.Tensor, num_part_tokens: int) -> Any:
        found = empty_parts(query, num_part_tokens)
        taken.append(sum(part.nbytes for part in found))
        return found

    taken, chip = list[int](), Processor(4, shared_bytes)
    for module in ("attend_latents", "latent_attention"):
        monkeypatch.setattr(f"penstock_kernels.gpu.{module}.processor", lambda _: chip)
    monkeypatch.setattr("penstock_kernels.gpu.attend_latents.empty_parts", watched)
    for dtype in (torch.float16, torch.float32):
        taken.clear()
        case = Case(Shape(heads=20, dtype=dtype), [(1, 700), (8, 80), (11, 30)], device)
        check(case)
        # The memory for parts is within what is foretold, beside queries in the space of the latents.
        limits = 3, len(case.query), case.tables.shape[1] * case.shape.block
        most = latent_parts_bytes(device, dtype, 20, case.shape.rank, *limits)
        assert 0 < max(taken) <= most - 2 * 2048 * 20 * case.shape.rank * dtype.itemsize


@pytest.mark.parametrize(("bound", "value"), [("_MOST_ABSORBED", 9), ("_MOST_TOKENS", 1)])
def test_longer_prompts_make_keys_and_values(device: torch.device, bound: str, value: int) -> None:
    if not runs_kernels(device):
        pytest.skip("there is no kernel")
    case = Case(Shape(), [(1, 70), (10, 30), (3, 9), (11, 11)], device)
    with mock.patch(f"penstock_kernels.gpu.latent_attention.{bound}", value):
        assert_close(case.attend(case.spans()), case.expected(), 2.0)
