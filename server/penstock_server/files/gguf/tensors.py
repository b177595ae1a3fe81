"""The tensors of GGUF files under the names that a family has for them. Reads no tensor."""

import re
from dataclasses import dataclass
from pathlib import Path

from penstock_server.architectures.family import NameMap
from penstock_server.architectures.registry import FAMILIES
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Entry
from penstock_server.files.gguf.config import IN_CONFIG, Described
from penstock_server.files.gguf.header import TensorInfo

_TENSOR = re.compile(r"(?:blk\.(?P<layer>\d{1,5})\.)?(?P<role>\w+)\.(?P<end>weight|bias)")
# The names of modules in GGUF, and for each the field of `NameMap` that has our name for it.
_OF_MODEL = {
    "token_embd": "embedding",
    "position_embd": "positions",
    "token_embd_norm": "embedding_norm",
    "output_norm": "final_norm",
    "output": "lm_head",
}
_OF_LAYER = {
    "attn_norm": "attention_input_norm",
    "post_attention_norm": "attention_output_norm",
    "ffn_norm": "mlp_input_norm",
    "post_ffw_norm": "mlp_output_norm",
    "attn_qkv": "qkv",
    "attn_q": "query",
    "attn_k": "key",
    "attn_v": "value",
    "attn_output": "output",
    "attn_q_norm": "query_norm",
    "attn_k_norm": "key_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "ffn_gate_inp": "router",
    "ffn_gate_shexp": "shared_gate",
    "ffn_up_shexp": "shared_up",
    "ffn_down_shexp": "shared_down",
    "ffn_gate_inp_shexp": "shared_router",
}
# Matrices of all experts, one behind the other.
_OF_EXPERTS = {"ffn_gate_exps": "expert_gate", "ffn_up_exps": "expert_up", "ffn_down_exps": "expert_down"}

_MAX_EXPERTS = 4096


@dataclass(frozen=True, slots=True)
class GgufEntry(Entry):
    """A tensor, or the matrix of one expert; its type may be one of blocks."""

    # Bytes of a row.
    row_bytes: int
    # Heads whose rows are in the order of neighbouring pairs; 0: rows are in order.
    paired_heads: int = 0
    # The number that was added to the weights.
    excess: float = 0.0


def entries(described: Described) -> dict[str, Entry]:
    """All tensors by our names; raises StartError for one that has none."""
    names = FAMILIES[described.row.model_type].names
    found: dict[str, Entry] = {}
    for info in described.parts.tensors.values():
        if info.name in IN_CONFIG:
            continue
        for entry in _entries(described, names, info):
            if entry.name in found:
                raise _unknown(described, info)
            found[entry.name] = entry
    return found


def _entries(described: Described, names: NameMap, info: TensorInfo) -> list[GgufEntry]:
    match = _TENSOR.fullmatch(info.name)
    if match is None or (match["layer"] is not None and int(match["layer"]) >= described.num_layers):
        raise _unknown(described, info)
    role, end = match["role"], match["end"]
    prefix = "" if match["layer"] is None else names.layer.format(int(match["layer"]))
    if prefix and role in _OF_EXPERTS and end == "weight" and _is_of_experts(info):
        module = prefix + str(getattr(names, _OF_EXPERTS[role]))
        return [
            _expert(described, info, f"{module.format(number)}.weight", number)
            for number in range(info.shape[0])
        ]
    field = (_OF_LAYER if prefix else _OF_MODEL).get(role, "")
    if field == "up" and described.row.fused_up:
        field = "gate_up"
    module = str(getattr(names, field)) if field else ""
    if not module:
        raise _unknown(described, info)
    return [_entry(described, info, f"{prefix}{module}.{end}", field)]


def _is_of_experts(info: TensorInfo) -> bool:
    return len(info.shape) == 3 and info.shape[0] <= _MAX_EXPERTS


def _entry(described: Described, info: TensorInfo, name: str, field: str) -> GgufEntry:
    row, heads = described.row, {"query": described.num_heads, "key": described.num_kv_heads}
    paired = heads.get(field, 0) if row.permuted else 0
    if paired and info.shape[0] % (2 * paired):
        raise StartError(
            f"{_file(described, info)}: tensor {info.name} has the shape {list(info.shape)}; "
            f"expected rows of {paired} heads"
        )
    return GgufEntry(
        name,
        _file(described, info),
        info.type.name,
        info.shape,
        info.begin,
        info.end,
        _row_bytes(info),
        paired,
        row.norm_excess if field.endswith("norm") else 0.0,
    )


def _expert(described: Described, info: TensorInfo, name: str, number: int) -> GgufEntry:
    size = (info.end - info.begin) // info.shape[0]
    begin, file = info.begin + number * size, _file(described, info)
    return GgufEntry(name, file, info.type.name, info.shape[1:], begin, begin + size, _row_bytes(info))


def _row_bytes(info: TensorInfo) -> int:
    return info.shape[-1] // info.type.numbers * info.type.bytes


def _file(described: Described, info: TensorInfo) -> Path:
    return described.parts.files[info.name]


def _unknown(described: Described, info: TensorInfo) -> StartError:
    return StartError(
        f"{_file(described, info)}: tensor {info.name} is none that {described.row.model_type} has here; "
        "the model may need what is not supported"
    )
