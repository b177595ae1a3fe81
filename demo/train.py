"""Trains the model in one process: Muon for the matrices, AdamW for the rest.

Stops and goes on from its checkpoint; ends with the weights in bfloat16.
"""

import argparse
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from demo.checkpoint import Checkpoint, start_from
from demo.packing import Chunk, batch
from demo.text import END_OF_TEXT, END_OF_TURN
from demo.tokenizer import CONTEXT

log = logging.getLogger("demo.train")


@dataclass(frozen=True)
class Recipe:
    """The settings that determine the result, together with the corpus."""

    seed: int = 1
    steps: int = 6000
    tokens: int = 3072
    rate: float = 4e-3
    warmup: int = 100
    decay: float = 0.35
    weight_decay: float = 0.05

    def rate_at(self, step: int) -> float:
        """Warm up, hold, then fall to almost nothing along a cosine."""
        start = self.steps * (1 - self.decay)
        fall = max(0.0, (step - start) / (self.steps - start))
        return self.rate * min(1.0, (step + 1) / self.warmup) * (0.01 + 0.99 * _cosine(fall))


def _cosine(x: float) -> float:
    return 0.5 + 0.5 * math.cos(math.pi * x)


def new_model(tokenizer: Tokenizer, seed: int) -> LlamaForCausalLM:
    """A small Llama; four KV heads, so that tensor parallel 1, 2 and 4 work."""
    torch.manual_seed(seed)
    ends: list[int] = [tokenizer.token_to_id(text) for text in (END_OF_TURN, END_OF_TEXT)]  # type: ignore[misc]
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ends,
        pad_token_id=ends[1],
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[1])  # type: ignore[no-untyped-call]
    return model


def optimizers(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for every matrix between the embeddings; AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = torch.optim.Muon(
        matrices,
        lr=recipe.rate,
        weight_decay=recipe.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    adam = torch.optim.AdamW(others, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return [muon, adam]


def loss_of(model: LlamaForCausalLM, chunk: Chunk) -> torch.Tensor:
    """The summed loss of the chunk's targets."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(chunk.ids, attention_mask=chunk.visible, use_cache=False)[0]
        logits = model.lm_head(hidden.flatten(0, 1)[chunk.positions])
    return cross_entropy(logits.float(), chunk.targets, reduction="sum")


def train_step(
    model: LlamaForCausalLM, makers: list[torch.optim.Optimizer], chunks: list[Chunk], rate: float
) -> float:
    """One update; returns the mean loss of a target."""
    count = sum(len(chunk.targets) for chunk in chunks)
    total = 0.0
    for chunk in chunks:
        loss = loss_of(model, chunk) / count
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for maker in makers:
        maker.param_groups[0]["lr"] = rate
        maker.step()
        maker.zero_grad()
    return total


def ship(model: LlamaForCausalLM, folder: Path) -> None:
    """Writes config.json, generation_config.json and model.safetensors in bfloat16."""
    shipped = LlamaForCausalLM(model.config)
    shipped.load_state_dict(model.state_dict())
    shipped.generation_config = model.generation_config
    shipped.bfloat16().save_pretrained(folder)


def train(tokenizer: Tokenizer, recipe: Recipe, work: Path, start: Path | None = None) -> LlamaForCausalLM:
    """Runs the steps that are still to do and returns the model.

    Without a checkpoint in `work`, the first step starts from the weights in `start`, if given.
    """
    torch.set_num_threads(1)
    model = new_model(tokenizer, recipe.seed)
    if start:
        start_from(start, model)
    makers = optimizers(model, recipe)
    checkpoint = Checkpoint(work, model, makers)
    since, seen, losses = time.monotonic(), 0, 0.0
    for step in range(checkpoint.load(), recipe.steps):
        chunks = batch(tokenizer, recipe.seed, step, recipe.tokens)
        losses += train_step(model, makers, chunks, recipe.rate_at(step))
        seen += recipe.tokens
        if (step + 1) % 50 == 0:
            speed = seen / (time.monotonic() - since)
            log.info("step %d loss %.4f tokens/s %.0f", step + 1, losses / 50, speed)
            since, seen, losses = time.monotonic(), 0, 0.0
        if (step + 1) % 100 == 0:
            checkpoint.save(step + 1)
    return model


def main() -> None:
    """Trains with the tokenizer in the folder and ships into it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="tokenizer in, weights out")
    parser.add_argument("--work", type=Path, required=True, help="where the checkpoint lives")
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--rate", type=float, default=Recipe.rate)
    parser.add_argument("--tokens", type=int, default=Recipe.tokens)
    parser.add_argument("--decay", type=float, default=Recipe.decay, help="part of the steps that it falls")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--from", dest="start", type=Path, help="folder whose weights to train further")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    recipe = Recipe(args.seed, args.steps, args.tokens, args.rate, decay=args.decay)
    ship(train(tokenizer, recipe, args.work, args.start), args.folder)


if __name__ == "__main__":
    main()
