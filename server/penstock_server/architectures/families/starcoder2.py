"""StarCoder2."""

from penstock_server.architectures.family import Family, NameMap, Windows

STARCODER2 = Family(
    "starcoder2",
    "StarCoder2",
    defaults={"tie_word_embeddings": True, "use_bias": True, "hidden_act": "gelu_pytorch_tanh"},
    norm_centered=True,
    norm_bias=True,
    norm_eps="norm_epsilon",
    qkv_bias="use_bias",
    output_bias="use_bias",
    mlp_bias="use_bias",
    windows=Windows(),
    gated=False,
    names=NameMap(up="mlp.c_fc", down="mlp.c_proj"),
)
