"""Adapters of models that transformers computes: tokens are those of PEFT's merge; what cannot carry one says so."""

from pathlib import Path
from typing import Any

import pytest
import thread_ranks
import tiny_model
import torch
from driver import make_engine
from family_models import BORROWED, KEPT
from penstock_server.base.errors import AdapterRefused
from safetensors.torch import load_file, save_file

pytest.importorskip("peft")
from peft_adapters import save_adapter
from test_adapters import SIZES, Served, ask, check, load

# PEFT uses names of transformers that are to go.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
# Our attention; experts beside it; another class for linear layers' places; caches of transformers.
CASES: dict[str, list[dict[str, Any]]] = {
    "bitnet": [
        {"target_modules": "all-linear", "r": 4, "lora_alpha": 6},
        {"target_modules": ["q_proj", "o_proj", "down_proj"], "r": 3, "use_dora": True, "use_rslora": True},
        {"target_modules": ["lm_head", "v_proj"], "r": 5},
    ],
    "biogpt": [
        {"target_modules": ["q_proj", "fc1", "fc2"], "r": 3, "bias": "lora_only"},
        {"target_modules": ["q_proj", "fc2"], "r": 3, "lora_bias": True},
    ],
    "laguna": [{"target_modules": ATTENTION, "r": 4}],
    "minimax": [{"target_modules": ["q_proj", "qkv_proj", "out_proj", "output_gate"], "r": 3}],
}


def save(folder: Path, name: str) -> Served:
    options = dict({**BORROWED, **KEPT}[name])
    model = tiny_model.save(folder / "model", tiny_model.TinyModel(options.pop("family", name), options))
    adapters = [
        save_adapter(folder / f"adapter-{number}", model, number, **each)
        for number, each in enumerate(CASES[name])
    ]
    return Served(folder / "model", model, adapters)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_rows_equal_the_merged_models(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = ask(save(tmp_path, name))
    with thread_ranks.engines(want.served.folder, size, monkeypatch, **SIZES) as ranks:
        assert {"transformers", "adapters"} <= set(ranks[0].description.abilities)
        ids = [load(rank, want.served) for rank in ranks]
        for seed in (None, 3):
            for rank in ranks:
                rank.clear()
            check(thread_ranks.execute_on_all(ranks), want, ids[0], seed)


def test_what_carries_none_is_refused_by_its_name(tmp_path: Path) -> None:
    served = save(tmp_path, "laguna")
    adapters = make_engine(served.folder, **SIZES).slots.adapters
    file = served.adapters[0].folder / "adapter_model.safetensors"
    tensors, prefix = load_file(file), "base_model.model.model"
    layer = f"{prefix}.layers.0"
    for name, shapes, message in (
        (f"{layer}.mlp.experts", ((4, 72), (72, 4)), "the model has no such layer, or it cannot be adapted"),
        (f"{layer}.self_attn.kv_proj", ((4, 72), (72, 4)), "the model has no such layer"),
        (f"{layer}.self_attn.q_proj", ((4, 73), (144, 4)), "has shape [4, 73], but the model needs [4, "),
    ):
        extra = {
            f"{name}.lora_{end}.weight": torch.ones(shape) for end, shape in zip("AB", shapes, strict=True)
        }
        save_file({**tensors, **extra}, file)
        with pytest.raises(AdapterRefused) as refused:
            adapters.load(file.parent, "", "test")
        assert name in str(refused.value)
        assert message in str(refused.value)
    rows = served.model.get_input_embeddings().weight.shape
    pair = {"A": torch.ones(2, rows[0]), "B": torch.ones(rows[1], 2)}
    extra = {f"{prefix}.embed_tokens.lora_embedding_{end}": tensor for end, tensor in pair.items()}
    save_file({**tensors, **extra}, file)
    with pytest.raises(AdapterRefused) as refused:
        adapters.load(file.parent, "", "test")
    assert "embed_tokens.lora_embedding_A is of a kind that is not supported there" in str(refused.value)
