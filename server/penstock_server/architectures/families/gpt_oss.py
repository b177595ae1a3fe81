"""gpt-oss: attention sinks, windows in every second layer, experts with a clamped activation."""

from penstock_server.architectures.family import Experts, Family, NameMap, Windows

GPT_OSS = Family(
    "gpt_oss",
    "gpt-oss (16 bits)",
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "head_dim": 64,
        "attention_bias": True,
        "sliding_window": 128,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    },
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    sinks=True,
    windows=Windows(full_every=2),
    clamped_swiglu=True,
    fixed={"swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    experts=Experts(size="intermediate_size", normalized=True, bias=True, interleaved=True),
    names=NameMap(router="mlp.router"),
)
