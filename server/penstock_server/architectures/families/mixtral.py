"""Mixtral: Mistral with eight experts, two for each token."""

from penstock_server.architectures.family import Experts, Family, NameMap, Windows

MIXTRAL = Family(
    "mixtral",
    "Mixtral 8x7B, 8x22B",
    defaults={"rope_theta": 1e6},
    windows=Windows(),
    experts=Experts(size="intermediate_size", normalized=True),
    names=NameMap(
        router="block_sparse_moe.gate",
        expert_gate="block_sparse_moe.experts.{}.w1",
        expert_up="block_sparse_moe.experts.{}.w3",
        expert_down="block_sparse_moe.experts.{}.w2",
    ),
)
