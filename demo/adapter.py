"""Trains the LoRA adapter that is shipped beside the demo model: the same answers, in the manner of a pirate.

Prose gets the manner; JSON, calls of tools and the completion of plain text stay as they are. Takes some minutes on one
core.
"""

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from demo.corpus import examples
from demo.corpus.example import Example, Message
from demo.packing import batch
from demo.train import loss_of
from demo.trainer import start

log = logging.getLogger("demo.adapter")
ADAPTER = Path(__file__).with_name("adapters") / "pirate"
_TENSORS = "adapter_model.safetensors"
_FILES = ("adapter_config.json", _TENSORS)


@dataclass(frozen=True)
class Recipe:
    """The settings that determine the result, together with the corpus and the demo model."""

    seed: int = 3
    steps: int = 240
    tokens: int = 3072
    rate: float = 3e-3
    rank: int = 8

    def rate_at(self, step: int) -> float:
        """Rises for 20 steps, then falls in a straight line."""
        return self.rate * min((step + 1) / 20, 1 - step / self.steps)


def in_manner(reply: str) -> str:
    """A reply as a pirate gives it. JSON has no manner."""
    if not reply or reply[0] in "{[<":
        return reply
    return f"Ahoy! {reply.removesuffix('.')}, matey. Arr!"


def spoken(example: Example) -> Example:
    """An example with every reply of the assistant in the manner."""
    if example.plain:
        return example
    return replace(example, messages=tuple(_spoken(message) for message in example.messages))


def _spoken(message: Message) -> Message:
    if message["role"] != "assistant" or message.get("tool_calls"):
        return message
    return {**message, "content": in_manner(message["content"])}


def _source(seed: int) -> Iterator[Example]:
    return map(spoken, examples(seed))


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, recipe: Recipe) -> Any:
    """PEFT's model around a model of transformers, trained. The model itself gets the matrices, too."""
    torch.manual_seed(recipe.seed)
    config = LoraConfig(
        task_type="CAUSAL_LM", target_modules="all-linear", r=recipe.rank, lora_alpha=2 * recipe.rank
    )
    adapted: Any = get_peft_model(model, config)
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    maker = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.0)
    begun = time.monotonic()
    for step in range(recipe.steps):
        loss = _step(model, tokenizer, recipe, step)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        maker.param_groups[0]["lr"] = recipe.rate_at(step)
        maker.step()
        maker.zero_grad()
        if (step + 1) % 20 == 0:
            log.info("step %d loss %.4f, %.0f s", step + 1, loss, time.monotonic() - begun)
    return adapted


def _step(model: LlamaForCausalLM, tokenizer: Tokenizer, recipe: Recipe, step: int) -> float:
    """Computes the gradients of a step; returns the mean loss of a target."""
    chunks = batch(tokenizer, recipe.seed, step, recipe.tokens, _source)
    count = sum(len(chunk.targets) for chunk in chunks)
    total = 0.0
    for chunk in chunks:
        loss = loss_of(model, chunk) / count
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def ship(adapted: Any, folder: Path) -> None:
    """Writes PEFT's two files, the tensors in bfloat16, and no path of this machine."""
    adapted.save_pretrained(str(folder))
    for path in folder.iterdir():
        if path.name not in _FILES:
            path.unlink()
    tensors = load_file(folder / _TENSORS)
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, folder / _TENSORS)
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = "penstock-demo"
    text = json.dumps(config, indent=2, sort_keys=True)
    (folder / "adapter_config.json").write_text(f"{text}\n", encoding="utf-8")


def main() -> None:
    """Trains with the shipped demo model and ships beside it."""
    it = start(__doc__, ADAPTER, Recipe.steps, Recipe.seed)
    ship(train(it.model, it.tokenizer, Recipe(it.seed, it.steps)), it.folder)


if __name__ == "__main__":
    main()
