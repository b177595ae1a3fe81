"""nanochat: norms without weights, also of embeddings, queries and keys; angles that are turned backwards."""

from penstock_server.architectures.family import Family, NameMap

NANOCHAT = Family(
    "nanochat",
    "nanochat d20, d32, d34",
    defaults={"hidden_act": "relu2", "final_logit_softcapping": 15.0},
    norm_weights=False,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="unit",
    backward_rope=True,
    gated=False,
    logit_soft_cap="final_logit_softcapping",
    names=NameMap(embedding_norm="model.norm", up="mlp.fc1", down="mlp.fc2"),
)
