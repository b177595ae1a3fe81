"""Attention over the latents that an index chooses: what it chooses, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import torch
from family_models import CASES
from penstock_kernels import AttentionSpans, captures_choices, choice_bytes, choose_positions
from penstock_server.architectures.fields import Fields
from penstock_server.architectures.kv_layers import read_index_sources
from penstock_server.architectures.registry import load_spec
from penstock_server.base.errors import StartError
from transformers import CONFIG_MAPPING


def test_what_does_not_fit_an_op_is_refused() -> None:
    query, weights, cache = torch.randn(4, 3, 8), torch.randn(4, 3), torch.randn(2, 4, 1, 8)
    spans = AttentionSpans((1, 3), (3, 4), torch.tensor([[0], [1]], dtype=torch.int32), 4)
    with pytest.raises(ValueError, match="choose_positions: weights"):
        choose_positions(query, weights[:, :2], cache, spans, 4)
    with pytest.raises(ValueError, match="choose_positions: 3 queries for the spans of 4"):
        choose_positions(query[:3], weights[:3], cache, spans, 4)
    with pytest.raises(ValueError, match="choose_positions: top_k 0"):
        choose_positions(query, weights, cache, spans, 0)
    with pytest.raises(ValueError, match="choose_positions: query"):
        choose_positions(query, weights, cache[..., :4], spans, 4)


def test_graphs_hold_an_index_that_has_tiles() -> None:
    assert captures_choices(torch.device("cuda"), 256)
    assert not captures_choices(torch.device("cuda"), 257)
    assert captures_choices(torch.device("cpu"), 1024)


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


def test_memory_is_planned_for_what_an_index_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of a part at a time, and of one query at least."""
    query, weights, cache = torch.randn(6, 4, 16), torch.randn(6, 4), torch.randn(50, 4, 1, 16)
    spans = AttentionSpans((6,), (192,), torch.arange(50, dtype=torch.int32)[None], 4)
    plain, taken = torch.empty, 0

    def counted(*shape: Any, **options: Any) -> torch.Tensor:
        nonlocal taken
        made = plain(*shape, **options)
        taken += made.nbytes
        return made

    for most, num_parts in ((2**24, 1), (400, 3), (1, 6)):
        monkeypatch.setattr("penstock_kernels.ops.choose_positions._MOST_SCORES", most)
        taken = 0
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", counted)
            choose_positions(query, weights, cache, spans, 9)
        assert taken == 4 * 6 * (192 + 9)
        queries = 4 * 6 * 4 * 17
        assert choice_bytes(6, 192, 4, 16, 9) == 4 * (-(-6 // num_parts) * 192 + 6 * 9) + queries
