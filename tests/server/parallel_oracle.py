"""A head of P-EAGLE whose weights are noise, and what it guesses by the formulas of its training, in plain PyTorch."""

import json
from pathlib import Path
from typing import Any

import torch
from penstock_server.engine.likeliest import Guess
from safetensors.torch import save_file
from torch.nn.functional import rms_norm, silu

SIZE, HEADS, KV_HEADS, DIM, INNER, KNOWN, VOCAB = 72, 4, 2, 16, 40, 200, 301
LAYERS, FIRST_KNOWN, MASK_TOKEN = (1, 2, 3), 50, 297
# The sliding window of the first of two layers, where it has one.
WINDOW = 6
_EPS, _THETA = 1e-6, 10000.0

Tensors = dict[str, torch.Tensor]


def noise(num_layers: int = 2) -> Tensors:
    """The tensors of a head that knows 200 of 301 tokens, and has embeddings of its own."""
    generator = torch.Generator().manual_seed(8)

    def normal(*shape: int, mean: float = 0.0) -> torch.Tensor:
        return torch.normal(mean, 0.3, shape, generator=generator)

    tensors = {
        "fc.weight": normal(SIZE, len(LAYERS) * SIZE),
        "mask_hidden": normal(1, 1, len(LAYERS) * SIZE),
        "embed_tokens.weight": normal(VOCAB, SIZE),
        "norm.weight": normal(SIZE, mean=1.0),
        "lm_head.weight": normal(KNOWN, SIZE),
        "d2t": torch.full((KNOWN,), FIRST_KNOWN),
        "layers.0.hidden_norm.weight": normal(SIZE, mean=1.0),
    }
    for layer in range(num_layers):
        reads = SIZE if layer else 2 * SIZE
        shapes = {
            "input_layernorm": (SIZE,),
            "post_attention_layernorm": (SIZE,),
            "self_attn.q_proj": (HEADS * DIM, reads),
            "self_attn.k_proj": (KV_HEADS * DIM, reads),
            "self_attn.v_proj": (KV_HEADS * DIM, reads),
            "self_attn.o_proj": (SIZE, HEADS * DIM),
            "mlp.gate_proj": (INNER, SIZE),
            "mlp.up_proj": (INNER, SIZE),
            "mlp.down_proj": (SIZE, INNER),
        }
        for name, shape in shapes.items():
            mean = 1.0 if "norm" in name else 0.0
            tensors[f"layers.{layer}.{name}.weight"] = normal(*shape, mean=mean)
    return tensors


def saved_noise(
    to: Path, tensors: Tensors, max_drafts: int | None = None, has_window: bool = False, **config: Any
) -> Path:
    """A folder in the form of `speculators`."""
    layers = {
        "model_type": "llama",
        "hidden_size": SIZE,
        "intermediate_size": INNER,
        "num_hidden_layers": 1 + ("layers.1.mlp.up_proj.weight" in tensors),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "hidden_act": "silu",
        "rms_norm_eps": _EPS,
        "rope_theta": _THETA,
        "max_position_embeddings": 2048,
        "vocab_size": VOCAB,
    }
    if has_window:
        layers |= {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
    method = {"proposal_type": "greedy", "speculative_tokens": max_drafts}
    raw = {
        "speculators_model_type": "peagle",
        "mask_token_id": MASK_TOKEN,
        "draft_vocab_size": KNOWN,
        "eagle_aux_hidden_state_layer_ids": list(LAYERS),
        "transformer_layer_config": layers,
        "speculators_config": {"algorithm": "peagle", "proposal_methods": [method] if max_drafts else []},
    }
    to.mkdir(parents=True)
    save_file(tensors, to / "model.safetensors")
    (to / "config.json").write_text(json.dumps({**raw, **config}))
    return to


def guesses(model: Any, tensors: Tensors, tokens: list[int], count: int, **facts: bool) -> list[int]:
    """The likeliest tokens behind these of a model of transformers, in one pass."""
    return _likeliest(_at_once(model, tensors, tokens, count, facts), tensors)


def levels(model: Any, tensors: Tensors, tokens: list[int], count: int, branches: int) -> list[list[Guess]]:
    """Several tokens for each position of the same pass, with their probabilities."""
    chances = _logits(_at_once(model, tensors, tokens, count, {}), tensors).softmax(-1)
    best, ids = chances.topk(branches)
    return [
        [Guess(FIRST_KNOWN + number, chance) for number, chance in zip(*row, strict=True)]
        for row in zip(ids.tolist(), best.tolist(), strict=True)
    ]


def _at_once(
    model: Any, tensors: Tensors, tokens: list[int], count: int, facts: dict[str, bool]
) -> torch.Tensor:
    """The outputs of the head for the positions that guess, [count, size]."""
    with torch.no_grad():
        masks = tensors["mask_hidden"].view(1, -1).expand(count - 1, -1)
        given = _projected(torch.cat((_states(model, tokens)[:-1], masks)), tensors, facts)
        return _returned(given, [*tokens[1:], *[MASK_TOKEN] * (count - 1)], tensors, facts)[-count:]


def guesses_in_turn(model: Any, tensors: Tensors, tokens: list[int], count: int) -> list[int]:
    """The guesses of the third version of EAGLE: the output for a position is the input for the next one."""
    found: list[int] = []
    with torch.no_grad():
        given = _projected(_states(model, tokens)[:-1], tensors, {})
        for _ in range(count):
            hidden = _returned(given, [*tokens[1:], *found], tensors, {})
            found += _likeliest(hidden[-1:], tensors)
            given = torch.cat((given, hidden[-1:]))
    return found


def _likeliest(hidden: torch.Tensor, tensors: Tensors) -> list[int]:
    return [FIRST_KNOWN + number for number in _logits(hidden, tensors).argmax(-1).tolist()]


def _logits(hidden: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    return _norm(hidden, tensors["norm.weight"]) @ tensors["lm_head.weight"].T


def _returned(
    hidden: torch.Tensor, followers: list[int], tensors: Tensors, facts: dict[str, bool]
) -> torch.Tensor:
    """The outputs of the layers for all positions, each with the token behind it."""
    for layer in range(2 if "layers.1.mlp.up_proj.weight" in tensors else 1):
        own = {
            name.removeprefix(f"layers.{layer}.").removesuffix(".weight"): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"layers.{layer}.")
        }
        if layer == 0:
            normed = _norm(hidden, own["hidden_norm"])
            hidden = normed if facts.get("norm_before_residual") else hidden
            embedded = _norm(tensors["embed_tokens.weight"][torch.tensor(followers)], own["input_layernorm"])
            read = torch.cat((embedded, normed), dim=-1)
        else:
            read = _norm(hidden, own["input_layernorm"])
        window = WINDOW if facts.get("has_window") and layer == 0 else len(read)
        hidden = hidden + _attended(read, own, window)
        normed = _norm(hidden, own["post_attention_layernorm"])
        gated = silu(normed @ own["mlp.gate_proj"].T) * (normed @ own["mlp.up_proj"].T)
        hidden = hidden + gated @ own["mlp.down_proj"].T
    return hidden


def _states(model: Any, tokens: list[int]) -> torch.Tensor:
    """The inputs of the layers, side by side."""
    states: dict[int, torch.Tensor] = {}
    modules = (*model.model.layers, model.model.norm)
    hooks = [
        modules[number].register_forward_pre_hook(
            lambda _module, args, number=number: states.update({number: args[0][0]})
        )
        for number in LAYERS
    ]
    model(torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return torch.cat([states[number] for number in LAYERS], dim=-1)


def _projected(states: torch.Tensor, tensors: Tensors, facts: dict[str, bool]) -> torch.Tensor:
    if facts.get("norm_before_fc"):
        states = _norm(states, tensors["input_norm.weight"])
    if facts.get("fc_norm"):
        parts = enumerate(states.chunk(len(LAYERS), dim=-1))
        states = torch.cat(
            [_norm(part, tensors[f"fc_norm.{number}.weight"]) for number, part in parts], dim=-1
        )
    return states @ tensors["fc.weight"].T


def _attended(read: torch.Tensor, own: Tensors, window: int) -> torch.Tensor:
    """Row by row what each sees: itself and those before it, whether they are known or stand for others."""
    query, key, value = (
        (read @ own[f"self_attn.{name}_proj"].T).view(len(read), -1, DIM).transpose(0, 1) for name in "qkv"
    )
    query, key = _rotated(query), _rotated(key).repeat_interleave(HEADS // KV_HEADS, 0)
    scores = query @ key.transpose(1, 2) / DIM**0.5
    visible = torch.ones(len(read), len(read), dtype=torch.bool).tril().triu(1 - window)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    found: torch.Tensor = weights @ value.repeat_interleave(HEADS // KV_HEADS, 0)
    return found.transpose(0, 1).flatten(1) @ own["self_attn.o_proj"].T


def _rotated(heads: torch.Tensor) -> torch.Tensor:
    half = DIM // 2
    angles = torch.arange(heads.shape[1])[:, None] * _THETA ** -(torch.arange(half) / half)
    first, second = heads[..., :half], heads[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, (x.shape[-1],), weight, _EPS)
