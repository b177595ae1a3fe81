"""Aria: experts and shared ones in every layer."""

from dataclasses import replace

from penstock_server.architectures.families.shared_experts import SHARED_NAMES
from penstock_server.architectures.family import Experts, Family

ARIA_TEXT = Family(
    "aria_text",
    "Aria (text)",
    aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_topk"},
    defaults={"num_experts": 8, "num_experts_per_tok": 2, "moe_num_shared_experts": 2},
    # A bias would be in the shared expert, too, and routed experts are always gated so.
    fixed={"mlp_bias": False, "hidden_act": "silu"},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    experts=Experts(
        size="intermediate_size",
        normalized=True,
        inputs_first=True,
        shared_count="moe_num_shared_experts",
        gates_shared=False,
    ),
    names=replace(
        SHARED_NAMES,
        router="mlp.router",
        experts_gate_up="mlp.experts.fc1.weight",
        experts_down="mlp.experts.fc2.weight",
    ),
)
