"""A model that says the token after the last one, or that one again, and heads that know it: what they draft is always
right.

Its layers add nothing, so a hidden state is the embedding of its token.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

NUM_HEADS = 4
# The gain of the likeliest token over all others: noise does not choose another.
_GAIN = 4.0
# The noise that a layer of multi-token prediction adds to what it knows: it is right about half of the time.
_BLUR = 3.0


def counting_model(saved_model: Callable[..., Any], to: Path, distance: int = 1, **options: Any) -> Path:
    """A folder of a model whose next token is the number of the last one and `distance` more."""
    shutil.copytree(saved_model(**options).folder, to)
    weights = load_file(to / "model.safetensors")
    for name, weight in weights.items():
        if "o_proj" in name or "down_proj" in name:
            weight.zero_()
    weights["model.norm.weight"].fill_(1.0)
    torch.manual_seed(6)
    embeddings = normalize(torch.randn_like(weights["model.embed_tokens.weight"]))
    weights["model.embed_tokens.weight"] = embeddings
    weights["lm_head.weight"] = ahead(embeddings, distance)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


def counting_model_with_mtp(
    saved_model: Callable[..., Any], to: Path, is_unsure: bool = False, **options: Any
) -> Path:
    """Like `counting_model`, with one layer, and one of multi-token prediction that is right for some tokens."""
    options = {"family": "glm4_moe", "num_hidden_layers": 2, "first_k_dense_replace": 2, **options}
    counting_model(saved_model, to, **options)
    raw = json.loads((to / "config.json").read_text())
    raw |= {"num_hidden_layers": 1, "num_nextn_predict_layers": 1, "mlp_layer_types": ["dense"]}
    (to / "config.json").write_text(json.dumps(raw))
    size = raw["hidden_size"]
    blurred = torch.eye(size) + _BLUR * torch.randn(size, size) / size**0.5
    own = {name: torch.ones(size) for name in ("enorm", "hnorm", "shared_head.norm")}
    if is_unsure:
        own["shared_head.norm"] /= _GAIN
    own["eh_proj"] = torch.cat((blurred, torch.zeros(size, size)), dim=1)
    named = {f"model.layers.1.{name}.weight": part for name, part in own.items()}
    weights = load_file(to / "model.safetensors")
    save_file({**weights, **named}, to / "model.safetensors", metadata={"format": "pt"})
    return to


def ahead(embeddings: torch.Tensor, distance: int) -> torch.Tensor:
    """A head whose likeliest token is so many behind that of the hidden state."""
    return _GAIN * embeddings.roll(distance, dims=0)


def half_right(head: torch.Tensor, seed: int) -> torch.Tensor:
    """The head with half of its rows in places of others: it is right for the tokens that keep theirs."""
    generator = torch.Generator().manual_seed(seed)
    moved = torch.randperm(len(head), generator=generator)[: len(head) // 2]
    mixed = head.clone()
    mixed[moved] = head[moved.roll(1)]
    return mixed


def unsure(head: torch.Tensor, seed: int) -> torch.Tensor:
    """The head, for which the token behind the right one is about as likely: half of the time it is likelier."""
    generator = torch.Generator().manual_seed(seed)
    weights = 1 + 0.1 * torch.randn(len(head), 1, generator=generator).sign()
    return (head + weights * head.roll(1, dims=0)) / _GAIN


def medusa_heads(
    model: Path,
    to: Path,
    num_layers: int = 1,
    says: int = NUM_HEADS,
    is_right: bool = True,
    is_unsure: bool = False,
) -> Path:
    """Heads of the first form, whose residual layers add nothing; `says`: how many config.json has."""
    embeddings = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    size = embeddings.shape[1]
    tensors = {}
    for head in range(NUM_HEADS):
        for layer in range(num_layers):
            tensors[f"{head}.{layer}.linear.weight"] = torch.zeros(size, size)
            tensors[f"{head}.{layer}.linear.bias"] = torch.zeros(size)
        right = ahead(embeddings, head + 2)
        known = right if is_right else half_right(right, head)
        tensors[f"{head}.{num_layers}.weight"] = unsure(right, head) if is_unsure else known
    return saved(to, tensors, {"medusa_num_heads": says, "medusa_num_layers": num_layers})


def noisy_heads(size: int, to: Path) -> Path:
    """Heads of the second form, which were never trained."""
    torch.manual_seed(4)
    tensors = {}
    for head in range(NUM_HEADS):
        tensors[f"{head}.0.linear.weight"] = torch.randn(size, size)
        tensors[f"{head}.0.linear.bias"] = torch.randn(size)
    return saved(to, tensors, {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": 1, "version": "2"})


def saved(
    to: Path,
    tensors: dict[str, torch.Tensor],
    config: dict[str, Any],
    name: str = "medusa_lm_head.safetensors",
) -> Path:
    """A folder of heads."""
    to.mkdir()
    save_file({part: tensor.contiguous() for part, tensor in tensors.items()}, to / name)
    (to / "config.json").write_text(json.dumps(config))
    return to


def half_right_model(model: Path, to: Path) -> Path:
    """A copy of a model that counts, which is wrong behind half of the tokens."""
    shutil.copytree(model, to)
    weights = load_file(to / "model.safetensors")
    weights["lm_head.weight"] = half_right(weights["lm_head.weight"], 3)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


def eagle_head(model: Path, to: Path, is_right: bool = True, is_unsure: bool = False) -> Path:
    """A head of the first version that hands on the embedding of the token, and adds nothing to it."""
    raw = json.loads((model / "config.json").read_text())
    size, dim = raw["hidden_size"], raw["head_dim"]
    heads, kv_heads = raw["num_attention_heads"] * dim, raw["num_key_value_heads"] * dim
    torch.manual_seed(7)
    tensors = {
        "fc.weight": torch.cat((8 * torch.eye(size), torch.zeros(size, size)), dim=1),
        "layers.0.self_attn.q_proj.weight": torch.randn(heads, size),
        "layers.0.self_attn.k_proj.weight": torch.randn(kv_heads, size),
        "layers.0.self_attn.v_proj.weight": torch.randn(kv_heads, size),
        "layers.0.self_attn.o_proj.weight": torch.zeros(size, heads),
        "layers.0.mlp.gate_proj.weight": torch.randn(raw["intermediate_size"], size),
        "layers.0.mlp.up_proj.weight": torch.randn(raw["intermediate_size"], size),
        "layers.0.mlp.down_proj.weight": torch.zeros(size, raw["intermediate_size"]),
        "layers.0.post_attention_layernorm.weight": torch.ones(size),
    }
    if is_unsure or not is_right:
        head = load_file(model / "model.safetensors")["lm_head.weight"]
        tensors["lm_head.weight"] = unsure(head, 3) if is_unsure else half_right(head, 3)
    return saved(to, tensors, {**raw, "num_hidden_layers": 1}, "model.safetensors")


def parallel_head(model: Path, to: Path, is_right: bool = True) -> Path:
    """A head of P-EAGLE for a model that repeats its last token: each row finds the newest token that is known.

    It has embeddings of its own. The first number tells that a token is known, the second that it stands for one, and
    the rest names it. Queries ask for keys that are near and of known tokens, and values are what names these.
    """
    raw = json.loads((model / "config.json").read_text())
    size, dim, vocab = raw["hidden_size"], raw["head_dim"], raw["vocab_size"]
    heads, kv_heads = raw["num_attention_heads"], raw["num_key_value_heads"]
    torch.manual_seed(5)
    mask = vocab - 1
    embeddings = torch.cat((torch.eye(2)[[0] * vocab], normalize(torch.randn(vocab, size - 2))), dim=1)
    embeddings[mask] = torch.eye(size)[1]
    # Only numbers with slow rotations are used, so that the nearest token is the likeliest.
    near = torch.zeros(dim)
    near[1:3] = 1.0
    query, key = torch.zeros(heads * dim, 2 * size), torch.zeros(kv_heads * dim, 2 * size)
    query[:, :2] = 60 * near.repeat(heads)[:, None]
    key[:, :2] = torch.outer(near.repeat(kv_heads), torch.tensor([1.0, -2.0]))
    value = torch.zeros(kv_heads * dim, 2 * size)
    value[:, 2:size] = torch.randn(kv_heads * dim, size - 2) / dim**0.5
    output = torch.randn(size, heads * dim)
    known = torch.nn.functional.rms_norm(embeddings, (size,)) @ value[:, :size].T
    named = known.view(vocab, kv_heads, dim).repeat_interleave(heads // kv_heads, 1).flatten(1) @ output.T
    head = _GAIN * normalize(named)
    ones, inner = torch.ones(size), raw["intermediate_size"]
    tensors = {
        "fc.weight": torch.zeros(size, 3 * size),
        "mask_hidden": torch.randn(1, 1, 3 * size),
        "embed_tokens.weight": embeddings,
        "layers.0.hidden_norm.weight": ones,
        "layers.0.input_layernorm.weight": ones.clone(),
        "layers.0.post_attention_layernorm.weight": ones.clone(),
        "layers.0.self_attn.q_proj.weight": query,
        "layers.0.self_attn.k_proj.weight": key,
        "layers.0.self_attn.v_proj.weight": value,
        "layers.0.self_attn.o_proj.weight": output,
        "layers.0.mlp.gate_proj.weight": torch.zeros(inner, size),
        "layers.0.mlp.up_proj.weight": torch.zeros(inner, size),
        "layers.0.mlp.down_proj.weight": torch.zeros(size, inner),
        "norm.weight": ones.clone(),
        "lm_head.weight": head if is_right else half_right(head, 3),
    }
    config = {
        "speculators_model_type": "peagle",
        "mask_token_id": mask,
        "draft_vocab_size": vocab,
        "eagle_aux_hidden_state_layer_ids": [0, 0, 1],
        "transformer_layer_config": {**raw, "num_hidden_layers": 1},
    }
    return saved(to, tensors, config, "model.safetensors")
