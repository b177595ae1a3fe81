"""The two models that every server gets as a folder: the demo model, and a 110M-parameter Llama of random weights.

Neither names an end of sequence, so that each answer is as long as it was asked for, also where a server knows no
`ignore_eos`.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock_server
import torch
from transformers import LlamaConfig, LlamaForCausalLM

DEMO_MODEL = Path(penstock_server.__file__).parent / "demo_model"
_VOCABULARY = 32_000


def demo(folder: Path) -> None:
    """The demo model's files, without its end of sequence."""
    for file in DEMO_MODEL.iterdir():
        shutil.copy(file, folder)
    for name in ("config.json", "generation_config.json"):
        _edit(folder / name, lambda content: content.pop("eos_token_id"))


def llama_110m(folder: Path) -> None:
    """The demo model's tokenizer, and words that only come out: every token has a text, so every token is streamed."""
    torch.manual_seed(7)
    LlamaForCausalLM(_config()).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / name, folder)
    _edit(folder / "tokenizer.json", lambda content: _widen(content["model"]["vocab"]))


def _config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=12,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )


def _widen(vocabulary: dict[str, int]) -> None:
    num_demo_tokens = json.loads((DEMO_MODEL / "config.json").read_text())["vocab_size"]
    vocabulary.update({f"Ġw{index}": index for index in range(num_demo_tokens, _VOCABULARY)})


def _edit(file: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content, ensure_ascii=False))
