"""Writes a Llama's folder as one GGUF file, for llama.cpp and OpenVINO: the same weights in one format, the same
tokenizer.

Beside layers of Q4_0, embedding and head are Q8_0: llama.cpp's own tool keeps more than 4 bits for them, too.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    TokenType,
    get_tensor_name_map,
    quants,
)
from numpy.typing import NDArray
from safetensors.torch import load_file

from benchmarks.compare.page_cache import forget

_SUFFIX = ".weight"
# The type of matrices that are not in layers, where it is another.
_OUTSIDE = {"Q4_0": "Q8_0"}
_FILE_TYPES = {
    "F32": "ALL_F32",
    "F16": "MOSTLY_F16",
    "BF16": "MOSTLY_BF16",
    "Q8_0": "MOSTLY_Q8_0",
    "Q4_0": "MOSTLY_Q4_0",
}


def write(folder: Path, file: Path, kind: str = "F32") -> None:
    """Reads config.json, model.safetensors and a byte-level BPE tokenizer.json; matrices become `kind`."""
    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(file, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    add_sizes(writer, config)
    writer.add_file_type(LlamaFileType[_FILE_TYPES[kind]])
    _add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()))
    for name, tensor in _tensors(folder, config):
        its_kind = kind if name.startswith("blk.") else _OUTSIDE.get(kind, kind)
        numbers = GGMLQuantizationType[its_kind if tensor.ndim == 2 else "F32"]
        writer.add_tensor(name, quants.quantize(tensor, numbers), raw_dtype=numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    forget(file)


def add_sizes(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """Writes the sizes that every architecture has."""
    head_dim = _head_dim(config)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _add_tokenizer(writer: GGUFWriter, tokenizer: dict[str, Any]) -> None:
    """llama.cpp selects the rule that splits text by name; GPT-2's splits plain words as the demo model's does."""
    tokens = {index: (text, TokenType.NORMAL) for text, index in tokenizer["model"]["vocab"].items()}
    for added in tokenizer["added_tokens"]:
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        tokens[added["id"]] = (added["content"], kind)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens[index][0] for index in range(len(tokens))])
    writer.add_token_types([tokens[index][1] for index in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_add_bos_token(False)


def _tensors(folder: Path, config: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }
    for name, weights in load_file(folder / "model.safetensors").items():
        kind = name.removesuffix(_SUFFIX).rsplit(".", 1)[-1]
        array = weights.float().numpy()
        yield _gguf_name(names, name), _interleaved(array, heads[kind]) if kind in heads else array


def _gguf_name(names: Any, name: str) -> str:
    found: str | None = names.get_name(name, try_suffixes=(_SUFFIX,))
    if found is None:
        raise ValueError(f"tensor {name} has no name in GGUF")
    return found


def _interleaved(weights: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """llama.cpp rotates pairs of neighbouring rows of a head; in these weights a pair is half a head apart."""
    pairs = weights.reshape(num_heads, 2, -1, weights.shape[1])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def _head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
