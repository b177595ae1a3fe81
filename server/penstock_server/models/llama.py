"""Llama 2 and 3."""

from penstock_server.models.config import Family

FAMILY = Family("llama", qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
