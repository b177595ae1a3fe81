"""A tiny random model with its own tokenizer, as a folder that a launcher can serve, and transformers' word on it."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

MAX_LEN = 256


_SPECIAL = ["<s>", "</s>"]
_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def make_model(
    folder: Path,
    max_len: int = MAX_LEN,
    config_class: Any = LlamaConfig,
    model_class: Any = LlamaForCausalLM,
    markers: Sequence[str] = (),
    **options: Any,
) -> Path:
    """Write the model and its tokenizer, which has these markers as tokens."""
    tokenizer = _tokenizer()
    tokenizer.add_tokens(list(markers))
    config = config_class(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_len,
        # Wide enough that the best token is best by far, whoever adds up the products.
        initializer_range=0.3,
        bos_token_id=tokenizer.token_to_id("<s>"),
        eos_token_id=tokenizer.token_to_id("</s>"),
        **options,
    )
    torch.manual_seed(20)
    model_class(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer


@cache
def reference(folder: Path) -> Any:
    """The model, as transformers computes it."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def greedy(folder: Path, prompt: str, num_tokens: int) -> tuple[list[int], str]:
    """Ids and text that transformers generates greedily."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    output = reference(folder).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
    )
    new = output[0, ids.shape[1] :].tolist()
    return new, tokenizer.decode(new)
