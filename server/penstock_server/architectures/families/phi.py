"""Phi-3, Phi-3.5 and Phi-4, mini and large."""

from penstock_server.architectures.family import Family, Windows

PHI3 = Family(
    "phi3",
    "Phi-3, Phi-3.5, Phi-4",
    defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    windows=Windows(),
    rope_kinds={"su": "longrope", "yarn": "longrope"},
)
