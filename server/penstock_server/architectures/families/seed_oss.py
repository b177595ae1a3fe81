"""Seed-OSS: Llama with biases of queries, keys and values."""

from penstock_server.architectures.family import Family

SEED_OSS = Family(
    "seed_oss",
    "Seed-OSS 36B",
    defaults={"head_dim": 128, "attention_bias": True, "max_position_embeddings": 524288},
    qkv_bias="attention_bias",
    output_bias="attention_out_bias",
    mlp_bias="mlp_bias",
)
