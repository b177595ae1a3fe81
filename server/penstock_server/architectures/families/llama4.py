"""Llama 4: chunks in layers that rotate, a temperature in the others, one expert of many beside a shared one."""

from penstock_server.architectures.family import Experts, Family, NameMap, RotatingLayers, Temperature

LLAMA4_TEXT = Family(
    "llama4_text",
    "Llama 4 (text)",
    # Experts have the plain key, dense layers another one.
    aliases={
        "intermediate_size": "intermediate_size_mlp",
        "expert_size": "intermediate_size",
        "decoder_sparse_step": "interleave_moe_layer_step",
    },
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "head_dim": 128,
        "intermediate_size": 16384,
        "expert_size": 8192,
        "attention_chunk_size": 8192,
        "use_qk_norm": True,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "num_experts_per_tok": 1,
        "num_local_experts": 16,
    },
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="unit",
    qk_norm_key="use_qk_norm",
    interleaved_rope=True,
    rotating_layers=RotatingLayers(),
    chunk_key="attention_chunk_size",
    temperature=Temperature(),
    experts=Experts(
        size="expert_size",
        normalized=False,
        sigmoid=True,
        layers_key="moe_layers",
        inputs_first=True,
        weighs_inputs=True,
        shared_size="expert_size",
        gates_shared=False,
    ),
    names=NameMap(
        gate="feed_forward.gate_proj",
        up="feed_forward.up_proj",
        down="feed_forward.down_proj",
        router="feed_forward.router",
        experts_gate_up="feed_forward.experts.gate_up_proj",
        experts_down="feed_forward.experts.down_proj",
        shared_gate="feed_forward.shared_expert.gate_proj",
        shared_up="feed_forward.shared_expert.up_proj",
        shared_down="feed_forward.shared_expert.down_proj",
    ),
)
