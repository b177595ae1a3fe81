"""The architectures of GGUF files, and which family computes them: a new one is a row here, if its family has one.

A row names what GGUF leaves to the program that reads it. Names of tensors are the same for all, see `tensors`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# The metadata, under keys without the name of the architecture.
Metadata = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How files of an architecture differ from a plain one."""

    model_type: str
    # Keys of the metadata beside the usual ones, and what config.json has for them; empty: of no use here.
    keys: Mapping[str, str] = field(default_factory=dict)
    # The fields that config.json has for every model of it.
    config: Mapping[str, Any] = field(default_factory=dict)
    # The fields of config.json that are computed from the metadata.
    derive: Callable[[Metadata], dict[str, Any]] | None = None
    # Rows of queries and keys are in the order of neighbouring pairs, and the family rotates pairs of half a head.
    permuted: bool = False
    # The number that was added to the weights of norms.
    norm_excess: float = 0.0
    # Gate and up projection are one tensor, under the name of the latter.
    fused_up: bool = False
    # The architecture with experts under the same name.
    with_experts: str = ""


_WINDOW = {"attention.sliding_window": "sliding_window"}
_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
_SIZED_EXPERTS = {**_EXPERTS, "expert_feed_forward_length": "moe_intermediate_size"}


def _score_divisor(num_layers: int) -> Callable[[Metadata], dict[str, Any]]:
    """The divisor of Gemma's scores: its largest model, which is known by its layers, has another number."""

    def derive(metadata: Metadata) -> dict[str, Any]:
        if metadata["block_count"] != num_layers:
            return {"query_pre_attn_scalar": metadata.get("attention.key_length", 256)}
        return {"query_pre_attn_scalar": metadata["embedding_length"] // metadata["attention.head_count"]}

    return derive


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", permuted=True, with_experts="mixtral"),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "gemma": Architecture("gemma", norm_excess=1.0),
    "gemma2": Architecture(
        "gemma2",
        keys={
            **_WINDOW,
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        derive=_score_divisor(46),
        norm_excess=1.0,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        keys={**_WINDOW, "rope.freq_base_swa": "rope_local_base_freq"},
        derive=_score_divisor(62),
        norm_excess=1.0,
    ),
    "phi3": Architecture("phi3", keys=_WINDOW, fused_up=True),
    "qwen3moe": Architecture("qwen3_moe", keys=_SIZED_EXPERTS, config={"norm_topk_prob": True}),
    # The architecture of a file of llama with experts.
    "mixtral": Architecture(
        "mixtral",
        keys={"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        permuted=True,
    ),
}
# Names that no file has.
_INTERNAL = ("mixtral",)
NAMES = tuple(name for name in ARCHITECTURES if name not in _INTERNAL)
