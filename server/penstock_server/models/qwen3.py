"""Qwen3 dense: every query and key head is normalised before it is rotated."""

from penstock_server.models.config import Family

FAMILY = Family(
    "qwen3",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm=True,
    has_window=True,
    default_head_dim=128,
)
