"""Tiny models as GGUF files, written by llama.cpp's own package, and transformers' model of the numbers in them."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, TokenType, get_tensor_name_map, quants
from numpy.typing import NDArray
from penstock_server.files.gguf.folder import make_folder
from quantized_models import Quantized
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from benchmarks.compare.gguf_file import add_sizes

Floats = NDArray[np.float32]
# The type of a tensor, by its name in the file.
Types = Callable[[str], str]

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
_SUFFIXES = (".weight", ".bias")
_EXPERT = re.compile(
    r"(?P<start>model\.layers\.(?P<layer>\d+)\..*\.experts\.)(?P<number>\d+)(?P<end>\.(?P<part>\w+)\.weight)"
)
_EXPERTS = {
    **dict.fromkeys(("w1", "gate_proj"), "ffn_gate_exps"),
    **dict.fromkeys(("w3", "up_proj"), "ffn_up_exps"),
    **dict.fromkeys(("w2", "down_proj"), "ffn_down_exps"),
}


class Written(NamedTuple):
    """A file, and transformers' model of what its numbers mean."""

    file: Path
    oracle: Any


class Kind(NamedTuple):
    """How llama.cpp's converter writes an architecture."""

    arch: MODEL_ARCH
    permuted: bool = False
    norm_excess: float = 0.0


KINDS = {
    "llama": Kind(MODEL_ARCH.LLAMA, permuted=True),
    "mixtral": Kind(MODEL_ARCH.LLAMA, permuted=True),
    "qwen2": Kind(MODEL_ARCH.QWEN2),
    "qwen3": Kind(MODEL_ARCH.QWEN3),
    "qwen3_moe": Kind(MODEL_ARCH.QWEN3MOE),
    "gemma": Kind(MODEL_ARCH.GEMMA, norm_excess=1.0),
    "gemma2": Kind(MODEL_ARCH.GEMMA2, norm_excess=1.0),
    "gemma3_text": Kind(MODEL_ARCH.GEMMA3, norm_excess=1.0),
    "phi3": Kind(MODEL_ARCH.PHI3),
}


def matrices_of(kind: str) -> Types:
    """All matrices of layers of one type, all else as it is."""
    return lambda name: (
        kind if name.startswith("blk.") and "norm" not in name and name.endswith("weight") else "F32"
    )


def write(
    healthy: Path,
    file: Path,
    types: Types,
    more: Callable[[GGUFWriter], None] = lambda _: None,
    split_max_tensors: int = 0,
) -> Written:
    """A model folder as a GGUF file. Rounds weights; the oracle has what is left of them."""
    config = json.loads((healthy / "config.json").read_text())
    kind = KINDS[config["model_type"]]
    writer = GGUFWriter(file, gguf.MODEL_ARCH_NAMES[kind.arch], split_max_tensors=split_max_tensors)
    add_facts(writer, config)
    add_tokenizer(writer, json.loads((healthy / "tokenizer.json").read_text()), config)
    more(writer)
    weights = load_file(healthy / "model.safetensors")
    for name, stored, shape, numbers in _tensors(weights, config, kind, types):
        writer.add_tensor(name, stored, raw_shape=shape, raw_dtype=numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    meant = Path(shutil.copytree(healthy, file.with_suffix(".meant")))
    save_file(weights, meant / "model.safetensors")
    oracle: Any = AutoModelForCausalLM.from_pretrained(meant)
    return Written(file, oracle.eval())


def served(written: Written, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Quantized:
    """The folder that is made for a file, with a cache of its own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(cache))
    return Quantized(make_folder(written.file), written.oracle)


def add_facts(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """Adds the facts that every architecture has."""
    add_sizes(writer, config)
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base((rope.get("full_attention") or rope)["rope_theta"])
    _add_own_facts(writer, config)


def _add_own_facts(writer: GGUFWriter, config: dict[str, Any]) -> None:
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    for key, add in (
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ("num_local_experts", writer.add_expert_count),
        ("num_experts", writer.add_expert_count),
        ("num_experts_per_tok", writer.add_expert_used_count),
        ("moe_intermediate_size", writer.add_expert_feed_forward_length),
    ):
        if config.get(key):
            add(config[key])


def add_tokenizer(writer: GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    """A byte-level BPE tokenizer that splits as GPT-2 does."""
    texts = {index: (text, TokenType.NORMAL) for text, index in tokenizer["model"]["vocab"].items()}
    for added in tokenizer["added_tokens"]:
        texts[added["id"]] = (added["content"], TokenType.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts[index][0] for index in range(len(texts))])
    writer.add_token_types([texts[index][1] for index in range(len(texts))])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    if merges:
        writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _tensors(
    weights: dict[str, torch.Tensor], config: dict[str, Any], kind: Kind, types: Types
) -> Iterator[tuple[str, NDArray[Any], tuple[int, ...], GGMLQuantizationType]]:
    """Name, bytes, shape and type; `weights` become what is written."""
    names = get_tensor_name_map(kind.arch, config["num_hidden_layers"])
    for name in list(weights):
        expert = _EXPERT.fullmatch(name)
        if expert is not None:
            if expert["number"] == "0":
                yield _experts(weights, expert, types)
            continue
        file_name = names.get_name(name, try_suffixes=_SUFFIXES)
        assert file_name is not None, name
        values = weights[name].float().numpy()
        order = _order(file_name, values, config) if kind.permuted else np.arange(len(values))
        excess = kind.norm_excess if "norm" in file_name else 0.0
        numbers = GGMLQuantizationType[types(file_name)]
        stored = pack(values[order] + np.float32(excess), numbers)
        meant = np.empty_like(values)
        meant[order] = unpack(stored, numbers).reshape(values.shape) - np.float32(excess)
        weights[name] = torch.from_numpy(meant)
        yield file_name, stored, stored.shape, numbers


def _experts(
    weights: dict[str, torch.Tensor], first: re.Match[str], types: Types
) -> tuple[str, NDArray[Any], tuple[int, ...], GGMLQuantizationType]:
    """The matrices of all experts, one behind the other."""
    file_name = f"blk.{first['layer']}.{_EXPERTS[first['part']]}.weight"
    count = sum(1 for name in weights if name.startswith(first["start"]) and name.endswith(first["end"]))
    its = [f"{first['start']}{number}{first['end']}" for number in range(count)]
    numbers = GGMLQuantizationType[types(file_name)]
    stored = pack(np.stack([weights[name].float().numpy() for name in its]), numbers)
    for name, meant in zip(its, unpack(stored, numbers), strict=True):
        weights[name] = torch.from_numpy(meant.copy())
    return file_name, stored, stored.shape, numbers


def _order(name: str, values: Floats, config: dict[str, Any]) -> NDArray[np.int64]:
    """Which row of a matrix each row of the file is: neighbours are half a head apart."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    count = next((heads[role] for role in heads if f".{role}." in name), None)
    rows = np.arange(len(values))
    return rows if count is None else rows.reshape(count, 2, -1).swapaxes(1, 2).reshape(-1)


def pack(values: Floats, numbers: GGMLQuantizationType) -> NDArray[Any]:
    """By the package where it can; random blocks of the same shape where it only reads a type."""
    if numbers == GGMLQuantizationType.F32:
        return values
    if numbers == GGMLQuantizationType.F16:
        return values.astype(np.float16)
    try:
        return quants.quantize(values, numbers)
    except NotImplementedError:
        return _random_blocks(values.shape, numbers)


def unpack(stored: NDArray[Any], numbers: GGMLQuantizationType) -> Floats:
    """The numbers, as the package reads them."""
    found: Floats = quants.dequantize(stored, numbers).astype(np.float32)
    return found


# For types that the package does not write: where in a block its floats of 16 bits are, and how large they may be.
_SCALES = {
    "Q2_K": ((80, 0.02), (82, 0.02)),
    "Q3_K": ((108, 0.004),),
    "Q4_K": ((0, 0.0008), (2, 0.002)),
    "Q5_K": ((0, 0.0004), (2, 0.002)),
    "Q6_K": ((208, 0.0001),),
    "IQ4_NL": ((0, 0.003),),
    "IQ4_XS": ((0, 0.0002),),
}


def _random_blocks(shape: tuple[int, ...], numbers: GGMLQuantizationType) -> NDArray[np.uint8]:
    each, size = gguf.GGML_QUANT_SIZES[numbers]
    generator = np.random.default_rng(sum(shape))
    blocks = generator.integers(0, 256, (*shape[:-1], shape[-1] // each, size), dtype=np.uint8)
    for at, largest in _SCALES[numbers.name]:
        scales = generator.uniform(largest / 2, largest, blocks.shape[:-1]).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)
