"""Nemotron 3 and 4, Arcee (AFM) and Jais 2: feed-forward layers without a gate, of squared positive numbers."""

from dataclasses import replace

from penstock_server.architectures.family import Family

ARCEE = Family(
    "arcee",
    "AFM 4.5B",
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu2", "max_position_embeddings": 4096},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    gated=False,
)
NEMOTRON = Family(
    "nemotron",
    "Nemotron 4, Minitron",
    defaults={"hidden_act": "relu2", "partial_rotary_factor": 0.5, "max_position_embeddings": 4096},
    norm_centered=True,
    norm_bias=True,
    norm_weight_offset=1.0,
    norm_eps="norm_eps",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    gated=False,
)
JAIS2 = replace(
    NEMOTRON,
    model_type="jais2",
    title="Jais 2",
    defaults={
        "hidden_act": "relu2",
        "attention_bias": True,
        "mlp_bias": True,
        "max_position_embeddings": 8192,
    },
    norm_weight_offset=0.0,
    norm_eps="layer_norm_eps",
)
