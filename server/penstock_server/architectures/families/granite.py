"""Granite 3: Llama with a factor at each place where one can stand."""

from penstock_server.architectures.family import Family

GRANITE = Family(
    "granite",
    "Granite 3.x",
    defaults={"attention_multiplier": 1.0},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    attention_scale="attention_multiplier",
    embedding_scale="embedding_multiplier",
    residual_multiplier="residual_multiplier",
    logit_divisor="logits_scaling",
)
