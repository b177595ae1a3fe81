"""Each rank reads its slices and nothing else; nothing is allocated for a model that does not fit its files."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from penstock_server import weights
from penstock_server.checkpoint import Checkpoint
from penstock_server.config import GroupConfig
from penstock_server.distributed import Group
from penstock_server.errors import StartError
from penstock_server.layers.placement import Placement
from penstock_server.models.decoder import Decoder
from penstock_server.models.registry import load_spec

CPU = torch.device("cpu")


def rank_of(rank: int, size: int) -> Group:
    """A group for loading, which needs no connection."""
    group = Group(GroupConfig(0, 1, None))
    group.rank, group.size = rank, size
    return group


def load(folder: Any, rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Decoder, int]:
    """A rank's model, and how many bytes of the checkpoint were read for it."""
    read: list[int] = []
    original = weights.read_slice

    def counting(opened: Any, name: str, piece: weights.Piece) -> torch.Tensor:
        part = original(opened, name, piece)
        read.append(part.nbytes)
        return part

    monkeypatch.setattr(weights, "read_slice", counting)
    model = Decoder(load_spec(folder), Placement(rank_of(rank, size), torch.float32), CPU)
    weights.load_weights(model, Checkpoint.open(folder), CPU)
    monkeypatch.setattr(weights, "read_slice", original)
    return model, sum(read)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_read_their_share(
    saved_model: Callable[..., Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_model("qwen3")
    checkpoint = Checkpoint.open(saved.folder)
    total = sum(entry.end - entry.begin for entry in checkpoint.entries.values())
    norms = sum(entry.end - entry.begin for name, entry in checkpoint.entries.items() if "norm" in name)
    shares = [load(saved.folder, rank, size, monkeypatch)[1] for rank in range(size)]
    assert sum(shares) == total + (size - 1) * norms
    assert max(shares) < total / size + norms + 2 * 72 * 4 * 2


def test_slices_of_all_ranks_make_up_the_whole(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_model("llama", attention_bias=True)
    state = saved.oracle.state_dict()
    ranks = [load(saved.folder, rank, 2, monkeypatch)[0] for rank in range(2)]
    layers: list[list[Any]] = [list(rank.layers) for rank in ranks]
    down = torch.cat([layer[1].feed_forward.down.weight for layer in layers], dim=1)
    assert torch.equal(down, state["model.layers.1.mlp.down_proj.weight"])
    embedding = torch.cat([rank.embedding.weight for rank in ranks])[:301]
    assert torch.equal(embedding, state["model.embed_tokens.weight"])
    fused = [layer[0].attention.qkv for layer in layers]
    query = torch.cat([part.weight[:72] for part in fused])
    assert torch.equal(query, state["model.layers.0.self_attn.q_proj.weight"])
    key_bias = torch.cat([part.bias[72:108] for part in fused])
    assert torch.equal(key_bias, state["model.layers.0.self_attn.k_proj.bias"])


def test_shapes_are_compared_before_anything_is_allocated(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_model()
    checkpoint = Checkpoint.open(saved.folder)
    del checkpoint.entries["model.norm.weight"]
    monkeypatch.setattr(weights, "allocate", lambda *_: pytest.fail("allocated"))
    model = Decoder(load_spec(saved.folder), Placement(rank_of(0, 1), torch.float32), CPU)
    with pytest.raises(StartError, match=r"model\.norm\.weight is in no safetensors file"):
        weights.load_weights(model, checkpoint, CPU)


def test_weights_are_converted_while_they_are_read(saved_model: Callable[..., Any]) -> None:
    saved = saved_model()
    model = Decoder(load_spec(saved.folder), Placement(rank_of(0, 1), torch.bfloat16), CPU)
    weights.load_weights(model, Checkpoint.open(saved.folder), CPU)
    expected = saved.oracle.state_dict()["model.embed_tokens.weight"].to(torch.bfloat16)
    assert torch.equal(model.embedding.weight, expected)
