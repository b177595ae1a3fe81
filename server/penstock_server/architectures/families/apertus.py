"""Apertus: an activation with learned numbers (xIELU) and no gate."""

from penstock_server.architectures.family import Family, NameMap

APERTUS = Family(
    "apertus",
    "Apertus 8B, 70B",
    defaults={
        "rms_norm_eps": 1e-5,
        "hidden_act": "xielu",
        "max_position_embeddings": 65536,
        "rope_theta": 12000000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    },
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    gated=False,
    names=NameMap(attention_input_norm="attention_layernorm", mlp_input_norm="feedforward_layernorm"),
)
