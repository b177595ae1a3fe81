"""ERNIE 4.5: Llama with rotary embedding in neighbouring pairs."""

from penstock_server.architectures.family import Family

ERNIE4_5 = Family(
    "ernie4_5",
    "ERNIE 4.5 0.3B",
    defaults={
        "head_dim": 128,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
    },
    qkv_bias="use_bias",
    output_bias="use_bias",
    mlp_bias="use_bias",
    interleaved_rope=True,
)
