"""The experts of a model, and which of its layers have them, from config.json."""

from collections.abc import Sequence

from penstock_server.architectures.family import Experts
from penstock_server.architectures.fields import Fields
from penstock_server.architectures.recurrent import Parts
from penstock_server.architectures.spec import MoeSpec, RoutingSpec

_MAX_EXPERTS = 4096


def read_moe(fields: Fields, experts: Experts | None) -> MoeSpec | None:
    """The experts of the sparse layers."""
    if experts is None or not _has_experts(fields, experts):
        return None
    # transformers 5 writes the second where 4 wrote the first.
    is_local = fields.get("num_experts") is None and fields.get("num_local_experts") is not None
    count_key = "num_local_experts" if is_local else "num_experts"
    num_experts = fields.integer(count_key, high=_MAX_EXPERTS)
    expert_size = fields.integer(experts.size)
    routing = _routing(fields, experts, num_experts)
    num_open = num_experts // routing.num_groups * routing.top_groups
    return MoeSpec(
        num_experts=num_experts,
        top_k=fields.integer("num_experts_per_tok", high=num_open),
        expert_size=expert_size,
        normalized=fields.fact(experts.normalized),
        bias=experts.bias,
        interleaved=experts.interleaved,
        inputs_first=experts.inputs_first,
        flat=experts.flat,
        weighs_inputs=experts.weighs_inputs,
        correction_dims=experts.correction_dims,
        wide_router=experts.wide_router,
        routing=routing,
        distance=_distance(fields, experts),
        shared_size=_shared_size(fields, experts, expert_size),
        gates_shared=experts.gates_shared,
        averages_shared=experts.averages_shared,
        beside_dense=experts.beside_dense,
    )


def _distance(fields: Fields, experts: Experts) -> float | None:
    if not experts.jitter:
        return None
    jitter = fields.get(experts.jitter)
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter < 1e30:
        raise fields.error(experts.jitter, jitter, "0 or a positive number")
    return 2.0 * jitter


def _shared_size(fields: Fields, experts: Experts, expert_size: int) -> int:
    if experts.shared_count:
        return fields.integer(experts.shared_count, default=0, low=0) * expert_size
    return fields.integer(experts.shared_size, low=0) if experts.shared_size else 0


def _routing(fields: Fields, experts: Experts, num_experts: int) -> RoutingSpec:
    num_groups, top_groups = 1, 1
    if experts.groups is not None:
        num_groups = fields.integer(experts.groups[0], default=1, high=num_experts)
        top_groups = fields.integer(experts.groups[1], default=1, high=num_groups)
        if num_experts % num_groups or (experts.sums_pairs and num_experts == num_groups):
            expected = f"groups of the same size of the {num_experts} experts"
            raise fields.error(experts.groups[0], num_groups, expected)
    scale = fields.number_fact(experts.scale)
    return RoutingSpec(
        experts.sigmoid, num_groups, top_groups, experts.sums_pairs, 1.0 if scale is None else scale
    )


def read_sparse_layers(fields: Fields, experts: Experts | None, parts: Sequence[Parts]) -> tuple[bool, ...]:
    """Per layer: whether its feed-forward has experts."""
    num_layers = len(parts)
    dense = fields.get("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise fields.error("mlp_only_layers", dense, "a list of layers")
    step = fields.integer("decoder_sparse_step", default=1)
    first, last = _sparse_range(fields, experts, num_layers)
    listed = _listed_layers(fields, experts, num_layers)
    has_experts = _has_experts(fields, experts)

    def is_sparse(layer: int) -> bool:
        said = parts[layer].sparse if listed is None else layer in listed
        by_number = first <= layer <= last and layer not in dense and (layer + 1) % step == 0
        return has_experts and parts[layer].feed_forward and (by_number if said is None else said)

    return tuple(map(is_sparse, range(num_layers)))


def _has_experts(fields: Fields, experts: Experts | None) -> bool:
    return experts is not None and (not experts.switch_key or fields.fact(experts.switch_key))


def _listed_layers(fields: Fields, experts: Experts | None, num_layers: int) -> list[int] | None:
    """The layers with experts, where they are listed. transformers may name the kind of every layer."""
    if experts is None:
        return None
    kinds = fields.of_layers("mlp_layer_types", ("dense", "sparse"), num_layers)
    if kinds is not None:
        return [layer for layer, kind in enumerate(kinds) if kind == "sparse"]
    if not experts.layers_key:
        return None
    listed = fields.get(experts.layers_key)
    if listed is None:
        return None
    if not isinstance(listed, list) or any(layer not in range(num_layers) for layer in listed):
        raise fields.error(experts.layers_key, listed, f"a list of layers below {num_layers}")
    return listed


def _sparse_range(fields: Fields, experts: Experts | None, num_layers: int) -> tuple[int, int]:
    """The first and the last layer that may have experts."""
    if experts is None:
        return num_layers, num_layers
    first = fields.integer(experts.first_layer_key, default=0, low=0) if experts.first_layer_key else 0
    last = fields.integer(experts.last_layer_key, default=-1, low=-1) if experts.last_layer_key else -1
    return first, num_layers - 1 if last == -1 else last
