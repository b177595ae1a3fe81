"""The models that every server gets as a folder: the demo model, and Llamas of 110M and 500M random weights.

None names an end of sequence, so that each answer is as long as it was asked for, also where a server knows no
`ignore_eos`.
"""

import json
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import penstock_server
import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.serving.random_model import config_110m

DEMO_MODEL = Path(penstock_server.__file__).parent / "demo_model"


class Counts(NamedTuple):
    """How many weights a step multiplies by: those of layers, and of the head."""

    layers: int
    head: int


def count(folder: Path) -> Counts:
    """Counts the weights of a folder's matrices; a model without a head of its own uses its embedding as the head."""
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    layers = (shape for name, shape in shapes.items() if ".layers." in name and len(shape) == 2)
    head = shapes.get("lm_head.weight", shapes["model.embed_tokens.weight"])
    return Counts(sum(map(prod, layers)), prod(head))


def demo(folder: Path) -> None:
    """The demo model's files, without its end of sequence."""
    for file in filter(Path.is_file, DEMO_MODEL.iterdir()):
        shutil.copy(file, folder)
    for name in ("config.json", "generation_config.json"):
        _edit(folder / name, lambda content: content.pop("eos_token_id"))


def llama_110m(folder: Path) -> None:
    """The demo model's tokenizer and words that occur only in outputs: every token has a text and is streamed."""
    _llama(folder, config_110m())


def llama_500m(folder: Path) -> None:
    """A larger model of the same kind: 490M weights in layers, in bfloat16 as such models are published."""
    config = config_110m()
    config.update({"hidden_size": 1536, "intermediate_size": 4608, "num_hidden_layers": 16, "head_dim": 128})
    _llama(folder, config, torch.bfloat16)


def _llama(folder: Path, config: LlamaConfig, dtype: torch.dtype = torch.float32) -> None:
    torch.manual_seed(7)
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)  # type: ignore[arg-type]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / name, folder)
    _edit(folder / "tokenizer.json", lambda content: _widen(content["model"]["vocab"], config.vocab_size))


def _widen(vocabulary: dict[str, int], num_tokens: int) -> None:
    num_demo_tokens = json.loads((DEMO_MODEL / "config.json").read_text())["vocab_size"]
    vocabulary.update({f"Ġw{index}": index for index in range(num_demo_tokens, num_tokens)})


def _edit(file: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content, ensure_ascii=False))
