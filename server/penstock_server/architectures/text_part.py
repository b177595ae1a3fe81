"""The text part of models that also see or hear: it is a model of its own, described in `text_config`.

Such a model reads text as its text part alone does, so that is what is served; images are refused by the router.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from penstock_server.base.errors import StartError

# Keys that count where the whole model has them.
_OF_THE_WHOLE = (
    "tie_word_embeddings",
    "eos_token_id",
    "dtype",
    "torch_dtype",
    "quantization_config",
    "compression_config",
)
# Older files have no `text_config`, but its keys beside those of the rest.
_FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
# The models that read a prompt in both directions.
_READ_BOTH_WAYS = ("paligemma", "pi0")
# The fields that published files leave out of `text_config`, with the values that transformers fills in.
_LEFT_OUT: dict[str, dict[str, Any]] = {
    "gemma3_text": {"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                    "max_position_embeddings": 131_072},
    "llama": {"vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
              "num_attention_heads": 32, "max_position_embeddings": 2048},
    "mistral": {"vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
                "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
}  # fmt: skip
# The prefixes of the text part's tensor names, and the prefixes that stand there where it is alone.
_PREFIXES = (("model.language_model.", "model."), ("model.text_model.", "model."), ("language_model.", ""))
# Tensors of the text part that may lie beside those.
_BESIDE = ("lm_head.", "mtp.")
_PLAIN = "model."


def is_whole(raw: dict[str, Any]) -> bool:
    """Whether a config.json is that of a model of which the text part is one of several."""
    model_type = raw.get("model_type")
    return raw.get("text_config") is not None or (isinstance(model_type, str) and model_type in _FLAT)


def text_part(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The config of the text part; raises StartError where that alone would not give what the model gives."""
    model_type = raw.get("model_type")
    text = raw.get("text_config")
    if text is None:
        return {**raw, "model_type": _FLAT[str(model_type)]}
    if not isinstance(text, dict):
        raise StartError(f"{path}: text_config is {str(text)[:100]!r}; expected an object")
    if model_type in _READ_BOTH_WAYS or text.get("is_encoder_decoder"):
        raise StartError(
            f"{path}: model_type {model_type!r} reads a prompt in both directions, which is not supported"
        )
    shared = {key: raw[key] for key in _OF_THE_WHOLE if raw.get(key) is not None}
    return {**_LEFT_OUT.get(str(text.get("model_type")), {}), **text, **shared}


def names_of_text(written: Collection[str]) -> dict[str, str]:
    """The tensors of the text part among those of the whole model: their names there, and those where it is alone."""
    found: dict[str, str] = {}
    beside: dict[str, str] = {}
    for name in written:
        prefix, alone = next((pair for pair in _PREFIXES if name.startswith(pair[0])), ("", ""))
        if prefix:
            found[name] = alone + name.removeprefix(prefix)
        elif name.startswith(_BESIDE):
            beside[name] = name
    if not found:
        # Older files name them as if it were alone.
        found = {name: name for name in written if name.startswith(_PLAIN)}
    return {**found, **beside}
