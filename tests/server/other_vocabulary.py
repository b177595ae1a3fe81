"""Copies of model folders with the same tokens under other numbers."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_ROWS = ("model.embed_tokens.weight", "lm_head.weight")


def renumbered(folder: Path, to: Path, seed: int = 0, num_lacking: int = 0, num_more: int = 0) -> Path:
    """A copy in which each token has another number, so many have another text, and there are so many more."""
    shutil.copytree(folder, to)
    config, tokenizer = _read(to / "config.json"), _read(to / "tokenizer.json")
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    count, size = len(vocabulary), config["vocab_size"] + num_more
    numbers = random.Random(seed).sample(range(size), size)
    texts = sorted(vocabulary, key=lambda text: vocabulary[text])
    texts[count - num_lacking :] = [f"[lacking{number}]" for number in range(num_lacking)]
    tokenizer["model"]["vocab"] = dict(zip(texts, numbers[:count], strict=True))
    tokenizer["model"]["merges"] = []
    for token in tokenizer["added_tokens"]:
        token["id"] = numbers[token["id"]]
    (to / "tokenizer.json").write_text(json.dumps(tokenizer))
    (to / "config.json").write_text(json.dumps({**config, "vocab_size": size}))
    weights = load_file(to / "model.safetensors")
    for name in _ROWS:
        moved = torch.zeros(size, weights[name].shape[1])
        moved[numbers[: len(weights[name])]] = weights[name]
        weights[name] = moved
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


def _read(file: Path) -> Any:
    return json.loads(file.read_text())
