"""Each rank reads its slices and nothing else; nothing is allocated for a model that does not fit its files."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import make_engine
from penstock_server.architectures.registry import load_spec
from penstock_server.base import progress
from penstock_server.base.config import GroupConfig
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.network import weights
from penstock_server.network.decoder import Decoder
from penstock_server.network.distributed import Group
from penstock_server.network.layers.placement import Placement
from safetensors.torch import load_file, save_file

CPU = torch.device("cpu")


def rank_of(rank: int, size: int) -> Group:
    """A group for loading, which needs no connection."""
    group = Group(GroupConfig(0, 1, None), CPU)
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
    query = torch.cat([part.weight[0] for part in fused])
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


@pytest.mark.parametrize("rank", [0, 1])
def test_what_needs_no_change_stays_in_the_file(
    saved_model: Callable[..., Any], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_model("llama", attention_bias=True)
    model, _ = load(saved.folder, rank, 2, monkeypatch)
    layers: list[Any] = list(model.layers)
    attention, feed_forward = layers[0].attention, layers[0].feed_forward
    weights_of = [
        *attention.qkv.weight,
        attention.output.weight,
        *feed_forward.up.weight,
        feed_forward.down.weight,
    ]
    assert all(is_in_file(weight, saved.folder) for weight in weights_of)
    # The bias is joined from three tensors, and nothing asks to keep them apart.
    assert not is_in_file(attention.qkv.bias, saved.folder)


def is_in_file(tensor: torch.Tensor, folder: Path) -> bool:
    """Whether the numbers are pages of the folder's weights."""
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [line[0].split("-") for line in maps if line[-1] == str(folder / "model.safetensors")]
    return any(int(first, 16) <= tensor.data_ptr() < int(last, 16) for first, last in ranges)


def test_a_parameter_is_copied_whole_if_any_slice_must_be(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    def halve_keys(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            if "k_proj" in name:
                tensors[name] = tensors[name].half()

    saved = saved_model()
    folder = rewrite(saved.folder, tmp_path / "mixed", halve_keys)
    model = Decoder(load_spec(folder), Placement(rank_of(0, 1), torch.float32), CPU)
    weights.load_weights(model, Checkpoint.open(folder), CPU)
    layers: list[Any] = list(model.layers)
    fused = layers[0].attention.qkv.weight
    state = load_file(folder / "model.safetensors")
    names = [f"model.layers.0.self_attn.{kind}_proj.weight" for kind in "qkv"]
    assert torch.equal(fused, torch.cat([state[name].float() for name in names]))


@pytest.mark.parametrize("excess", [1, 2, 3])
def test_numbers_that_lie_across_their_places_are_copied(
    saved_model: Callable[..., Any], tmp_path: Path, excess: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_model("llama")
    folder = Path(shutil.copytree(saved.folder, tmp_path / "odd"))
    file = folder / "model.safetensors"
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    file.write_bytes((end - 8 + excess).to_bytes(8, "little") + data[8:end] + b" " * excess + data[end:])
    model, _ = load(folder, 0, 1, monkeypatch)
    layers: list[Any] = list(model.layers)
    query = layers[0].attention.qkv.weight[0]
    assert query.data_ptr() % 4 == 0
    assert torch.equal(query, saved.oracle.state_dict()["model.layers.0.self_attn.q_proj.weight"])


def test_weights_are_converted_while_they_are_read(saved_model: Callable[..., Any]) -> None:
    saved = saved_model()
    model = Decoder(load_spec(saved.folder), Placement(rank_of(0, 1), torch.bfloat16), CPU)
    weights.load_weights(model, Checkpoint.open(saved.folder), CPU)
    expected = saved.oracle.state_dict()["model.embed_tokens.weight"].to(torch.bfloat16)
    assert torch.equal(model.embedding.weight, expected)


def rewrite(folder: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A copy of a folder, its tensors changed."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / "model.safetensors")
    return target


def fuse(tensors: dict[str, torch.Tensor]) -> None:
    """One tensor for query, key and value, and one for gate and up, as some tools write them."""
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        query, key, value = (tensors.pop(f"{prefix}self_attn.{part}_proj.weight") for part in "qkv")
        tensors[f"{prefix}self_attn.qkv_proj.weight"] = torch.cat((query, key, value))
        gate, up = (tensors.pop(f"{prefix}mlp.{part}_proj.weight") for part in ("gate", "up"))
        tensors[f"{prefix}mlp.gate_up_proj.weight"] = torch.cat((gate, up))


def stack(tensors: dict[str, torch.Tensor]) -> None:
    """All experts of a layer in one tensor, as transformers 5 holds them."""
    for layer in range(3):
        prefix = f"model.layers.{layer}.mlp.experts."
        parts = {
            part: torch.stack([tensors.pop(f"{prefix}{expert}.{part}_proj.weight") for expert in range(6)])
            for part in ("gate", "up", "down")
        }
        tensors[f"{prefix}gate_up_proj"] = torch.cat((parts["gate"], parts["up"]), dim=1)
        tensors[f"{prefix}down_proj"] = parts["down"]


def strip(tensors: dict[str, torch.Tensor]) -> None:
    """Names of a model that was saved without its head."""
    for name in list(tensors):
        tensors[name.removeprefix("model.")] = tensors.pop(name)


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 44}


@pytest.mark.parametrize(
    ("change", "family", "options"),
    [
        (fuse, "llama", {}),
        (stack, "qwen3_moe", EXPERTS),
        (strip, "llama", {"tie_word_embeddings": True}),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_other_ways_to_write_a_checkpoint_mean_the_same(
    saved_model: Callable[..., Any],
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], None],
    family: str,
    options: dict[str, Any],
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = saved_model(family, vocab_size=302, **options)
    other = rewrite(saved.folder, tmp_path / "other", change)
    expected = dict(load(saved.folder, size - 1, size, monkeypatch)[0].named_buffers())
    found = dict(load(other, size - 1, size, monkeypatch)[0].named_buffers())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_dummy_weights_are_the_same_on_every_start_and_read_no_file(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    shutil.copytree(saved_model().folder, tmp_path / "model")
    (tmp_path / "model/model.safetensors").unlink()
    engines = [make_engine(tmp_path / "model", load_format="dummy") for _ in range(2)]
    models: list[Any] = [engine.model for engine in engines]
    first, second = (dict(model.named_buffers()) for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(0.01 < float(buffer.std()) < 0.03 for buffer in first.values())


def test_long_loads_tell_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = iter([0.0, 1.0, 3.0, 3.0, 4.0])
    monkeypatch.setattr("penstock_server.base.progress.time.monotonic", lambda: next(now))
    caplog.set_level(logging.INFO)
    loading = progress.Progress(logging.getLogger("load"), "weights", 4_000_000_000)
    for _ in range(3):
        loading.add(1_000_000_000)
    assert caplog.messages == ["weights 50% (2.0 of 4.0 GB)"]
