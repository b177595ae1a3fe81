"""Trains the EAGLE-3 head that is shipped with the demo model: one layer over its hidden states that guesses on.

The model stays as it is. The head learns to find each token as likely as the model does, and from what it computed
itself, too, as it will when it guesses several tokens. Takes 20 minutes on one core.
"""

import json
import logging
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import cross_entropy, linear, silu
from transformers import LlamaForCausalLM

from demo.evaluate import FOLDER
from demo.medusa import rows_of
from demo.packing import Chunk, batch
from demo.trainer import start

log = logging.getLogger("demo.eagle")
HEAD = FOLDER / "eagle"
# The hidden states that it reads: what these layers take, and what the last one returns.
LAYERS = (2, 3, 4)
_EPS = 1e-6


@dataclass(frozen=True)
class Recipe:
    """The settings that determine the result, together with the corpus and the demo model."""

    seed: int = 6
    steps: int = 1200
    tokens: int = 3072
    rate: float = 3e-3
    # Tokens that it guesses in a row, and what each counts of the one before it.
    depth: int = 4
    decay: float = 0.8

    def rate_at(self, step: int) -> float:
        """Rises for 20 steps, then falls in a straight line."""
        return self.rate * min((step + 1) / 20, 1 - step / self.steps)


@dataclass(frozen=True)
class Shape:
    """The sizes of the head."""

    size: int = 192
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 256
    vocab: int = 1024
    theta: float = 10000.0


class Head(nn.Module):
    """Its tensors are named as in the published checkpoints."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        size, dim = shape.size, shape.head_dim

        def matrix(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        self.fc = matrix(len(LAYERS) * size, size)
        attention = nn.ModuleDict(
            {
                "q_proj": matrix(2 * size, shape.num_heads * dim),
                "k_proj": matrix(2 * size, shape.num_kv_heads * dim),
                "v_proj": matrix(2 * size, shape.num_kv_heads * dim),
                "o_proj": matrix(shape.num_heads * dim, size),
            }
        )
        mlp = nn.ModuleDict(
            {
                "gate_proj": matrix(size, shape.intermediate),
                "up_proj": matrix(size, shape.intermediate),
                "down_proj": matrix(shape.intermediate, size),
            }
        )
        norms = {
            name: nn.RMSNorm(size, _EPS)
            for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")
        }
        self.midlayer = nn.ModuleDict({"self_attn": attention, "mlp": mlp, **norms})
        self.norm = nn.RMSNorm(size, _EPS)
        self.lm_head = matrix(size, shape.vocab)

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, seen: "Seen") -> torch.Tensor:
        """[rows, width, size] each: the next hidden states."""
        layer: Any = self.midlayer
        both = torch.cat((layer["input_layernorm"](embedded), layer["hidden_norm"](hidden)), dim=-1)
        hidden = hidden + layer["self_attn"]["o_proj"](seen.attend(layer["self_attn"], both))
        normed, mlp = layer["post_attention_layernorm"](hidden), layer["mlp"]
        found: torch.Tensor = hidden + mlp["down_proj"](
            silu(mlp["gate_proj"](normed)) * mlp["up_proj"](normed)
        )
        return found


class Seen:
    """Keys and values: of every position, and of what was guessed from each position on."""

    def __init__(self, shape: Shape, visible: torch.Tensor) -> None:
        self.shape, self.visible = shape, visible
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def attend(self, attention: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        """The attention output for the queries of `x`; the keys of the first call are those of all positions."""
        shape, step = self.shape, len(self.keys)
        query, key, value = (
            attention[name](x).unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        copies = shape.num_heads // shape.num_kv_heads
        query, key = self._rotated(query, step), self._rotated(key, step).repeat_interleave(copies, 1)
        self.keys.append(key)
        self.values.append(value.repeat_interleave(copies, 1))
        scale = shape.head_dim**-0.5
        scores = (query @ self.keys[0].transpose(2, 3) * scale).masked_fill(~self.visible, -torch.inf)
        own = [(query * key).sum(-1, keepdim=True) * scale for key in self.keys[1:]]
        weights = torch.cat((scores, *own), dim=-1).softmax(-1)
        width = scores.shape[-1]
        found = weights[..., :width] @ self.values[0]
        for number, values in enumerate(self.values[1:]):
            found = found + weights[..., width + number, None] * values
        return found.transpose(1, 2).flatten(2)

    def _rotated(self, heads: torch.Tensor, step: int) -> torch.Tensor:
        half = self.shape.head_dim // 2
        frequencies = self.shape.theta ** -(torch.arange(half) / half)
        angles = (torch.arange(heads.shape[2]) + step)[:, None] * frequencies
        first, second = heads[..., :half], heads[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def states_of(model: LlamaForCausalLM, chunk: Chunk) -> torch.Tensor:
    """[rows, width, 3 * size]: what the head reads."""
    found: dict[int, torch.Tensor] = {}
    modules = (*model.model.layers, model.model.norm)

    def keep(number: int) -> Any:
        def hook(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            found[number] = args[0].float()

        return modules[number].register_forward_pre_hook(hook)

    handles = [keep(number) for number in LAYERS]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model.model(chunk.ids, attention_mask=chunk.visible, use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.cat([found[number] for number in LAYERS], dim=-1)


def _loss(
    model: LlamaForCausalLM, head: Head, chunk: Chunk, known: torch.Tensor, recipe: Recipe
) -> list[torch.Tensor]:
    """The mean loss of each guess beside what the model thinks there. `known`: the number of each token in the head's
    vocabulary, or -1."""
    states = states_of(model, chunk)
    hidden, seen = head.fc(states), Seen(head.shape, chunk.visible)
    thought = model.model.norm(states.flatten(0, 1)[:, -head.shape.size :])
    those = model.lm_head.weight[known >= 0]
    losses = []
    for guess in range(recipe.depth):
        embedded = model.model.embed_tokens(chunk.ids.roll(-1 - guess, dims=1))
        hidden = head(embedded, hidden, seen)
        rows, tokens = rows_of(chunk, guess + 2)
        rows = rows[known[tokens] >= 0]
        logits = head.lm_head(head.norm(hidden.flatten(0, 1)[rows]))
        likely = linear(thought[rows + guess + 1], those).softmax(-1)
        losses.append(cross_entropy(logits, likely))
    return losses


def frequent(tokenizer: Tokenizer, recipe: Recipe, count: int) -> torch.Tensor:
    """The tokens that replies have most often, in the order of their numbers."""
    counts: Counter[int] = Counter()
    for step in range(60):
        for chunk in batch(tokenizer, recipe.seed + 1, step, recipe.tokens):
            counts.update(chunk.targets.tolist())
    return torch.tensor(sorted(token for token, _ in counts.most_common(count)))


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, recipe: Recipe, vocabulary: torch.Tensor) -> Head:
    """The head of a model of transformers, whose weights get no gradients."""
    torch.manual_seed(recipe.seed)
    model.requires_grad_(False)
    head = Head(Shape(vocab=len(vocabulary)))
    with torch.no_grad():
        head.lm_head.weight.copy_(model.lm_head.weight[vocabulary])
    known = torch.full((model.config.vocab_size,), -1)
    known[vocabulary] = torch.arange(len(vocabulary))
    maker = torch.optim.AdamW(head.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    begun = time.monotonic()
    for step in range(recipe.steps):
        told = [0.0] * recipe.depth
        chunks = batch(tokenizer, recipe.seed, step, recipe.tokens)
        for chunk in chunks:
            losses = _loss(model, head, chunk, known, recipe)
            total = sum((loss * recipe.decay**number for number, loss in enumerate(losses)), torch.zeros(()))
            (total / len(chunks)).backward()  # type: ignore[no-untyped-call]
            told = [old + loss.item() / len(chunks) for old, loss in zip(told, losses, strict=True)]
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        maker.param_groups[0]["lr"] = recipe.rate_at(step)
        maker.step()
        maker.zero_grad()
        if (step + 1) % 20 == 0:
            shown = " ".join(f"{loss:.3f}" for loss in told)
            log.info("step %d losses %s, %.0f s", step + 1, shown, time.monotonic() - begun)
    return head


def ship(head: Head, vocabulary: torch.Tensor, vocab_size: int, folder: Path) -> None:
    """Writes config.json and the head in bfloat16, in the form of the published ones."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: parameter.detach().bfloat16() for name, parameter in head.named_parameters()}
    tensors["d2t"] = vocabulary - torch.arange(len(vocabulary))
    is_known = torch.zeros(vocab_size, dtype=torch.bool)
    is_known[vocabulary] = True
    tensors["t2d"] = is_known
    save_file(tensors, folder / "model.safetensors")
    shape = head.shape
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.size,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _EPS,
        "rope_theta": shape.theta,
        "max_position_embeddings": 2048,
        "vocab_size": vocab_size,
        "draft_vocab_size": shape.vocab,
        "eagle_aux_hidden_state_layer_ids": list(LAYERS),
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Trains with the shipped demo model and ships with it."""
    it = start(__doc__, HEAD, Recipe.steps, Recipe.seed)
    recipe = Recipe(it.seed, it.steps)
    vocabulary = frequent(it.tokenizer, recipe, Shape.vocab)
    ship(train(it.model, it.tokenizer, recipe, vocabulary), vocabulary, it.model.config.vocab_size, it.folder)


if __name__ == "__main__":
    main()
