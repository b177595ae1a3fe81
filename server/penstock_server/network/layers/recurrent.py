"""Which layer computes which kind of recurrent layer, and what it keeps of a sequence."""

from penstock_server.architectures.recurrent_spec import (
    DeltaSpec,
    RowDeltaSpec,
    SelectiveSpec,
    StateShape,
    StateSpaceSpec,
)
from penstock_server.architectures.spec import ModelSpec
from penstock_server.network.distributed import Group
from penstock_server.network.layers.delta import DeltaLayer, delta_state
from penstock_server.network.layers.gated_conv import GatedConvLayer, gated_conv_state
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.row_delta import RowDeltaLayer, row_delta_state
from penstock_server.network.layers.selective import SelectiveLayer, selective_state
from penstock_server.network.layers.state_space import StateSpaceLayer, state_space_state

RecurrentLayer = DeltaLayer | RowDeltaLayer | StateSpaceLayer | SelectiveLayer | GatedConvLayer


def recurrent_layer(spec: ModelSpec, layer: int, placement: Placement) -> RecurrentLayer:
    """The layer of the model's kind."""
    if isinstance(spec.recurrent, DeltaSpec):
        return DeltaLayer(spec, layer, placement)
    if isinstance(spec.recurrent, RowDeltaSpec):
        return RowDeltaLayer(spec, layer, placement)
    if isinstance(spec.recurrent, StateSpaceSpec):
        return StateSpaceLayer(spec, layer, placement)
    if isinstance(spec.recurrent, SelectiveSpec):
        return SelectiveLayer(spec, layer, placement)
    return GatedConvLayer(spec, layer, placement)


def state_shape(spec: ModelSpec, num_layers: int, group: Group) -> StateShape | None:
    """The state of a sequence on this rank, beside keys and values; None: no rank has one. `num_layers`: those that are
    here and have a state, which may be none of those that have."""
    kind = spec.recurrent
    if kind is None or not spec.num_recurrent_layers:
        return None
    if isinstance(kind, DeltaSpec):
        return delta_state(kind, num_layers, group)
    if isinstance(kind, RowDeltaSpec):
        return row_delta_state(kind, num_layers, group)
    if isinstance(kind, StateSpaceSpec):
        return state_space_state(kind, num_layers, group)
    if isinstance(kind, SelectiveSpec):
        return selective_state(kind, num_layers, group)
    return gated_conv_state(kind, num_layers, spec.hidden_size, group)
