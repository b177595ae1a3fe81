"""Trains the MEDUSA heads that are shipped with the demo model: each guesses a token farther ahead than the next.

The model stays as it is, and each head learns to find each token as likely as it does. The folder has the form of
TGI's second version: a matrix for each head, and the head of the model for all of them. Takes a quarter of an hour on
one core.
"""

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy, silu
from transformers import LlamaForCausalLM

from demo.evaluate import FOLDER
from demo.packing import Chunk, batch
from demo.trainer import start

log = logging.getLogger("demo.medusa")
HEADS = FOLDER / "medusa"


@dataclass(frozen=True)
class Recipe:
    """The settings that determine the result, together with the corpus and the demo model."""

    seed: int = 5
    steps: int = 2400
    tokens: int = 3072
    rate: float = 3e-3
    num_heads: int = 4

    def rate_at(self, step: int) -> float:
        """Rises for 20 steps, then falls in a straight line."""
        return self.rate * min((step + 1) / 20, 1 - step / self.steps)


class Heads(torch.nn.Module):
    """`x + SiLU(Wx + b)` for each head. They begin as what predicts the next token."""

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.linears = torch.nn.ModuleList(torch.nn.Linear(size, size) for _ in range(num_heads))
        for parameter in self.parameters():
            torch.nn.init.zeros_(parameter)

    def forward(self, hidden: torch.Tensor, number: int) -> torch.Tensor:
        """[num_rows, size]: what the head of the model makes the logits of."""
        return hidden + silu(self.linears[number](hidden))


def rows_of(chunk: Chunk, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the flattened ids in a reply, and the tokens `distance` behind theirs, which are in it, too."""
    ids = chunk.ids.flatten()
    is_row = torch.zeros(len(ids) + distance, dtype=torch.bool)
    is_row[chunk.positions] = True
    held = is_row[: len(ids)].clone()
    for behind in range(1, distance):
        held &= is_row[behind : len(ids) + behind]
    rows = held.nonzero().squeeze(1)
    return rows, ids[rows + distance]


def _step(model: LlamaForCausalLM, heads: Heads, chunks: list[Chunk]) -> list[float]:
    """Computes the gradients of a step; returns the mean loss of each head beside what the model thinks there."""
    losses = [0.0] * len(heads.linears)
    for chunk in chunks:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(chunk.ids, attention_mask=chunk.visible, use_cache=False)[0].flatten(0, 1)
        for number in range(len(losses)):
            rows, _tokens = rows_of(chunk, number + 2)
            logits = model.lm_head(heads(hidden[rows].float(), number))
            likely = model.lm_head(hidden[rows + number + 1].float()).softmax(-1)
            loss = cross_entropy(logits, likely) / len(chunks)
            loss.backward()  # type: ignore[no-untyped-call]
            losses[number] += loss.item()
    return losses


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, recipe: Recipe) -> Heads:
    """The heads of a model of transformers, whose weights get no gradients."""
    model.requires_grad_(False)
    heads = Heads(model.config.hidden_size, recipe.num_heads)
    maker = torch.optim.AdamW(heads.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    begun = time.monotonic()
    for step in range(recipe.steps):
        losses = _step(model, heads, batch(tokenizer, recipe.seed, step, recipe.tokens))
        maker.param_groups[0]["lr"] = recipe.rate_at(step)
        maker.step()
        maker.zero_grad()
        if (step + 1) % 20 == 0:
            told = " ".join(f"{loss:.3f}" for loss in losses)
            log.info("step %d losses %s, %.0f s", step + 1, told, time.monotonic() - begun)
    return heads


def ship(heads: Heads, folder: Path) -> None:
    """Writes config.json and the heads in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for number, linear in enumerate(heads.linears):
        for name, parameter in linear.named_parameters():
            tensors[f"{number}.0.linear.{name}"] = parameter.detach().bfloat16()
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    config = {"medusa_num_heads": len(heads.linears), "medusa_num_layers": 1, "version": "2"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Trains with the shipped demo model and ships with it."""
    it = start(__doc__, HEADS, Recipe.steps, Recipe.seed)
    ship(train(it.model, it.tokenizer, Recipe(it.seed, it.steps)), it.folder)


if __name__ == "__main__":
    main()
