"""GLM-4, and GLM-4-0414 with norms on both sides: half of each head rotates, in neighbouring pairs."""

from dataclasses import replace

from penstock_server.architectures.family import Family, NameMap

GLM = Family(
    "glm",
    "GLM-4 9B, GLM-Edge",
    defaults={
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "head_dim": 128,
        "rms_norm_eps": 1.5625e-7,
        "max_position_embeddings": 131072,
    },
    qkv_bias="attention_bias",
    interleaved_rope=True,
)
GLM4 = replace(
    GLM,
    model_type="glm4",
    title="GLM-4-0414 9B, 32B, GLM-Z1",
    names=NameMap(attention_output_norm="post_self_attn_layernorm", mlp_output_norm="post_mlp_layernorm"),
)
GLM4V = replace(
    GLM4,
    model_type="glm4v_text",
    title="GLM-4.1V (text)",
    defaults={"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768},
    qkv_bias=True,
)
