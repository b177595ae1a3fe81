"""Attention over the latents that an index chooses: what it chooses, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import torch
from driver import make_engine
from family_models import CASES
from penstock_kernels import AttentionSpans, choose_positions, chosen_latent_attention, latent_attention
from penstock_kernels.reference import chosen_latents
from penstock_server.architectures.fields import Fields
from penstock_server.architectures.kv_layers import read_index_sources
from penstock_server.architectures.registry import load_spec
from penstock_server.base.errors import StartError
from transformers import CONFIG_MAPPING

BLOCK = 4
# Query and context lengths: a decode, a prompt, one behind a cached prefix, nothing.
LENS = ((1, 9), (7, 7), (3, 11), (0, 0))


class Step:
    """Queries over a filled cache whose blocks are scattered; what belongs to no context is NaN."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        queries, contexts = zip(*LENS, strict=True)
        self.spans = AttentionSpans(queries, contexts, self._tables(), BLOCK)
        self.cache = torch.full((12, BLOCK, 1, width), float("nan"))
        for span, (_, context_len) in enumerate(LENS):
            self.flat(self.cache)[self.positions(span, context_len)] = torch.randn(context_len, width)

    def _tables(self) -> torch.Tensor:
        order = iter((7, 2, 11, 0, 5, 9, 3, 8))
        return torch.tensor(
            [[next(order) if at < -(-length // BLOCK) else 0 for at in range(3)] for _, length in LENS],
            dtype=torch.int32,
        )

    @staticmethod
    def flat(cache: torch.Tensor) -> torch.Tensor:
        return cache.view(-1, cache.shape[-1])

    def positions(self, span: int, count: int) -> list[int]:
        table = self.spans.block_tables[span].tolist()
        return [table[position // BLOCK] * BLOCK + position % BLOCK for position in range(count)]

    def rows(self) -> list[tuple[int, int]]:
        """Of each query its span, and how many positions it sees."""
        return [
            (span, context_len - query_len + row + 1)
            for span, (query_len, context_len) in enumerate(LENS)
            for row in range(query_len)
        ]


@pytest.mark.parametrize("top_k", [1, 4, 20])
@pytest.mark.parametrize("numbers", [1, 2**26])
def test_the_best_positions_of_each_query_are_chosen(
    top_k: int, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen_latents, "_MOST_NUMBERS", numbers)
    step = Step(8)
    query, weights = torch.randn(11, 3, 8), torch.randn(11, 3)
    chosen = choose_positions(query, weights, step.cache, step.spans, top_k)
    assert chosen.shape == (11, top_k)
    for row, (span, seen) in enumerate(step.rows()):
        places = step.positions(span, seen)
        keys = step.flat(step.cache)[places]
        scores = ((query[row] @ keys.T * 8**-0.5).relu() * weights[row, :, None]).sum(0)
        expected = [places[at] for at in scores.topk(min(top_k, seen)).indices.tolist()]
        found = chosen[row].tolist()
        assert set(found[: len(expected)]) == set(expected)
        assert found[len(expected) :] == [-1] * (top_k - len(expected))


@pytest.mark.parametrize("numbers", [1, 2**26])
def test_where_all_is_chosen_attention_is_that_over_all(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen_latents, "_MOST_NUMBERS", numbers)
    step = Step(12)
    query, key_up, value_up = torch.randn(11, 2, 9), torch.randn(2, 8, 5), torch.randn(2, 6, 8)
    everything = [[*step.positions(span, seen), *[-1] * (20 - seen)] for span, seen in step.rows()]
    found = chosen_latent_attention(query, step.cache, key_up, value_up, torch.tensor(everything), 0.3)
    expected = latent_attention(query, step.cache, key_up, value_up, step.spans, 0.3)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_what_does_not_fit_an_op_is_refused() -> None:
    step = Step(8)
    query, weights = torch.randn(11, 3, 8), torch.randn(11, 3)
    with pytest.raises(ValueError, match="choose_positions: weights"):
        choose_positions(query, weights[:, :2], step.cache, step.spans, 4)
    with pytest.raises(ValueError, match="choose_positions: 10 queries for the spans"):
        choose_positions(query[:10], weights[:10], step.cache, step.spans, 4)
    with pytest.raises(ValueError, match="choose_positions: top_k 0"):
        choose_positions(query, weights, step.cache, step.spans, 0)
    ups = torch.randn(3, 4, 4), torch.randn(3, 6, 4)
    with pytest.raises(ValueError, match="chosen_latent_attention: chosen"):
        chosen_latent_attention(query, step.cache, *ups, torch.zeros(3, 2, dtype=torch.int64), 1.0)


def test_steps_are_captured_where_all_is_seen(saved_model: Callable[..., Any]) -> None:
    folder = saved_model(**CASES["deepseek_v32"]).folder
    assert make_engine(folder, max_sequence_len=20).model.capturable
    assert not make_engine(folder, max_sequence_len=21).model.capturable


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"indexer_types": ["full", "half", "full"]},
            "indexer_types is .*; expected full or shared for each",
        ),
        (
            {"indexer_types": ["shared", "full", "full"]},
            "indexer_types is .*; expected full for the first layer",
        ),
        ({"indexer_types": None, "index_topk_pattern": "FS"}, "indexer_types is .* for each of the 3 layers"),
        (
            {"indexer_types": None, "index_topk_freq": 0},
            "index_topk_freq is 0; expected a whole number from 1",
        ),
        ({"index_head_dim": 5}, "index_head_dim is 5; expected a whole number from 6 to 1024"),
        ({"q_lora_rank": None}, "q_lora_rank is None; expected a whole number: the index"),
        ({"index_topk": 0}, "index_topk is 0; expected a whole number from 1"),
    ],
)
def test_an_index_that_is_not_known_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    options = dict(CASES["glm_moe_dsa"])
    tiny_model.save(tmp_path, tiny_model.TinyModel(options.pop("family"), options))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    with pytest.raises(StartError, match=message):
        load_spec(tmp_path)


@pytest.mark.parametrize(
    ("keys", "sources"),
    [
        ({}, (None,) * 6),
        ({"index_topk_freq": 2}, (None, None, 1, None, 3, None)),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, (None, 0, 0, None, 3, 3)),
        ({"index_topk_pattern": "FSSFSF"}, (None, 0, 0, None, 3, None)),
        ({"index_topk_pattern": ["full", "shared", "full", "full", "full", "full"]}, (None, 0, *(None,) * 4)),
    ],
)
def test_how_layers_share_an_index_is_read_as_transformers_reads_it(
    keys: dict[str, Any], sources: tuple[int | None, ...]
) -> None:
    found = read_index_sources(Fields(keys, Path("config.json")), 6)
    assert found == sources
    usual: Any = CONFIG_MAPPING["glm_moe_dsa"]
    kinds = usual(num_hidden_layers=6, **keys).indexer_types
    assert ["full" if source is None else "shared" for source in found] == kinds
