"""EXAONE 4: norms behind both parts, three layers with a window to one that sees everything and does not rotate."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Family, NameMap, Windows


def _adapt(family: Family, raw: dict[str, Any]) -> Family:
    """The small model has no windows, and all of its layers rotate."""
    if raw.get("sliding_window", 0) is None:
        return replace(family, windows=None, rope_only_in_windows=False)
    return family


EXAONE4 = Family(
    "exaone4",
    "EXAONE 4.0",
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
    qk_norm="head",
    windows=Windows(full_every=4),
    rope_only_in_windows=True,
    names=NameMap(
        attention_input_norm="",
        attention_output_norm="post_attention_layernorm",
        mlp_input_norm="",
        mlp_output_norm="post_feedforward_layernorm",
    ),
    adapt=_adapt,
)
