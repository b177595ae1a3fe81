"""SmolLM 3: Llama in which every fourth layer does not rotate."""

from penstock_server.architectures.family import Family, RotatingLayers, Windows

SMOLLM3 = Family(
    "smollm3",
    "SmolLM 3",
    defaults={"tie_word_embeddings": True, "rope_theta": 2000000.0},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    windows=Windows(switch_key="use_sliding_window"),
    rotating_layers=RotatingLayers(),
)
