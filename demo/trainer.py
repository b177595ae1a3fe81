"""The command line of what is trained over the shipped demo model."""

import argparse
import logging
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from demo.evaluate import FOLDER


class Started(NamedTuple):
    """What every trainer begins with."""

    folder: Path
    steps: int
    seed: int
    tokenizer: Tokenizer
    model: LlamaForCausalLM


def start(description: str | None, folder: Path, steps: int, seed: int) -> Started:
    """Reads the flags, of which these are the defaults, and the demo model."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, default=folder)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=seed)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    return Started(args.folder, args.steps, args.seed, tokenizer, model)
