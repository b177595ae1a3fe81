"""Makes tiny random models that also see, with a text part as `tiny_model` makes it."""

import inspect
from pathlib import Path
from typing import Any

import tiny_model
import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

# The options of the vision part; each kind has some of these.
_SEEING: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_layers": 1,
    "image_size": 32, "patch_size": 8, "depth": 1, "num_heads": 2, "embed_dim": 32, "fullatt_block_indexes": [0],
    "deepstack_visual_indexes": [0],
}  # fmt: skip


def build(whole: str, text: str, options: dict[str, Any]) -> Any:
    """A model of type `whole` with a text part of type `text`; `options` are those of the text part."""
    wanted = {key: value for key, value in {**tiny_model.sizes(), **options}.items() if value is not None}
    torch.manual_seed(0)
    config_class: Any = CONFIG_MAPPING[whole]
    config = config_class(
        text_config={"model_type": text, **wanted},
        vision_config=_seeing(whole, wanted["hidden_size"]),
        tie_word_embeddings=wanted["tie_word_embeddings"],
    )
    model: Any = AutoModelForImageTextToText.from_config(config).eval()  # type: ignore[no-untyped-call]
    tiny_model.shake(model)
    return model


def _seeing(whole: str, hidden_size: int) -> dict[str, Any] | None:
    """The config of the part that sees, if there must be one; what it makes of images is as wide as the text part."""
    config_class: Any = CONFIG_MAPPING[whole]
    usual = config_class().vision_config
    if usual is None:
        return None
    known = {*inspect.signature(type(usual)).parameters, *getattr(type(usual), "__dataclass_fields__", ())}
    wanted = {**_SEEING, "out_hidden_size": hidden_size}
    return {"model_type": usual.model_type, **{key: wanted[key] for key in wanted if key in known}}


def save(folder: Path, whole: str, text: str, options: dict[str, Any]) -> Any:
    """Write a complete model folder; returns the model."""
    model = build(whole, text, options)
    model.save_pretrained(folder)
    vocab_size = model.config.text_config.vocab_size
    tiny_model.train_tokenizer(vocab_size).save(str(folder / "tokenizer.json"))
    return model
