"""Command A+ and North: Command A with experts; the first layers are dense and may rotate whatever they see."""

from dataclasses import replace
from typing import Any, TypeGuard

from penstock_server.architectures.families.cohere import COHERE2
from penstock_server.architectures.families.shared_experts import SHARED_NAMES
from penstock_server.architectures.family import Experts, Family, RotatingLayers, WrongValue

_SLIDING, _ROTATING = "sliding_attention", "rotating_layers"
_MOST = 9999
# How the layers follow, and what is meant where nothing is written.
_PATTERN = {"first_k_dense_replace": 0, "prefix_dense_sliding_window_pattern": 1, "sliding_window_pattern": 4}


def _with_choices(family: Family, raw: dict[str, Any]) -> Family:
    """Two kinds of norms and of routers, two ways to add the shared experts, and two sizes of feed-forward layers."""
    experts, fixed = family.experts, dict(family.fixed)
    assert experts is not None, "its row has them"
    if raw.get("expert_selection_fn") == "sigmoid":
        experts = replace(experts, sigmoid=True, normalized="norm_topk_prob")
        del fixed["expert_selection_fn"]
    if raw.get("shared_expert_combination_strategy") == "sum":
        experts = replace(experts, averages_shared=False)
        del fixed["shared_expert_combination_strategy"]
    if raw.get("rms_norm_eps") is not None:
        family = replace(family, norm_centered=False, norm_eps="rms_norm_eps")
    # No config.json says what rotates.
    aliases = {**family.aliases, experts.size: "intermediate_size", _ROTATING: ""}
    if raw.get("prefix_dense_intermediate_size") is not None:
        aliases["intermediate_size"] = "prefix_dense_intermediate_size"
    return _with_layers(replace(family, experts=experts, fixed=fixed, aliases=aliases), raw)


def _with_layers(family: Family, raw: dict[str, Any]) -> Family:
    """Layers see positions by a pattern that starts anew behind the dense layers. Dense layers rotate, too, if their
    own pattern is that all of them see everything."""
    num_layers = raw.get("num_hidden_layers")
    if not _is_count(num_layers, 1):
        return family
    written = {key: usual if raw.get(key) is None else raw[key] for key, usual in _PATTERN.items()}
    for key, value in written.items():
        fewest = min(_PATTERN[key], 1)
        if not _is_count(value, fewest):
            raise WrongValue(key, value, f"a whole number from {fewest} to {_MOST}")
    num_dense, every_dense, every = written.values()
    places = [*range(1, num_dense + 1), *range(1, num_layers - num_dense + 1)]
    steps = [every_dense] * num_dense + [every] * (num_layers - num_dense)
    kinds = raw.get("layer_types") or [
        _SLIDING if place % step else "full_attention" for place, step in zip(places, steps, strict=True)
    ]
    parts = raw.get("mlp_layer_types") or ["dense"] * num_dense + ["sparse"] * (num_layers - num_dense)
    defaults = {**family.defaults, "layer_types": kinds, "mlp_layer_types": parts}
    if not all(isinstance(listed, list) and len(listed) == num_layers for listed in (kinds, parts)):
        # Which is refused by name; what rotates cannot be told.
        return replace(family, defaults=defaults, rotating_layers=None)
    has_windows = raw.get("sliding_window", 1) is not None
    defaults[_ROTATING] = [
        int((kind == _SLIDING and has_windows) or (part == "dense" and every_dense == 1))
        for kind, part in zip(kinds, parts, strict=True)
    ]
    return replace(family, defaults=defaults)


def _is_count(value: Any, low: int) -> TypeGuard[int]:
    """Whether it can be the number of some layers."""
    return type(value) is int and low <= value <= _MOST


COHERE2_MOE = replace(
    COHERE2,
    model_type="cohere2_moe",
    title="Command A+, North Mini Code",
    defaults={
        **COHERE2.defaults,
        "head_dim": 128,
        "max_position_embeddings": 8192,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "num_shared_experts": 0,
    },
    fixed={
        "expert_selection_fn": "softmax",
        "shared_expert_combination_strategy": "average",
        "use_parallel_block": True,
        "use_qk_norm": False,
    },
    rope_only_in_windows=False,
    rotating_layers=RotatingLayers(key=_ROTATING),
    # A softmax is over those chosen.
    experts=Experts(
        normalized=True, shared_count="num_shared_experts", gates_shared=False, averages_shared=True
    ),
    names=replace(SHARED_NAMES, mlp_input_norm=""),
    adapt=_with_choices,
)
