"""The input that every layer gets from a token beside the hidden states: numbers of an embedding of its own."""

import math

import torch
from penstock_kernels import AdapterRows
from torch import nn

from penstock_server.architectures.spec import LayerInputs, ModelSpec
from penstock_server.network.layers.embedding import VocabEmbedding
from penstock_server.network.layers.feed_forward import activation
from penstock_server.network.layers.linear import ColumnLinear, Rows
from penstock_server.network.layers.norm import Norm
from penstock_server.network.layers.placement import Placement


class OwnInputs(nn.Module):
    """Makes those of all layers: from the token, and from its embedding on the way into the first layer."""

    def __init__(self, spec: ModelSpec, given: LayerInputs, placement: Placement) -> None:
        super().__init__()
        names, width = spec.names, spec.num_layers * given.size
        self.shape = (spec.num_layers, given.size)
        self.embedding = VocabEmbedding(names.layers_embedding, given.vocab_size, width, placement)
        self.projection = _whole(names.layers_projection, width, spec.hidden_size, placement)
        self.norm = Norm(names.layers_norm, given.size, spec.norm, placement)
        # Rounded to the type of the weights, as in training.
        self.scale = float(torch.tensor(given.size**0.5, dtype=placement.dtype, device="cpu"))
        self.projection_scale = spec.hidden_size**-0.5

    def forward(self, token_ids: torch.Tensor, x: torch.Tensor, adapters: AdapterRows | None) -> torch.Tensor:
        """[num_tokens] and [num_tokens, hidden_size] to [num_tokens, num_layers, size]."""
        given: torch.Tensor = (self.embedding(token_ids) * self.scale).view(-1, *self.shape)
        made = self.projection(x, adapters) * self.projection_scale
        normed: torch.Tensor = self.norm(made.view(-1, self.shape[1]))
        return (normed.view_as(given) + given) * math.sqrt(0.5)


class OwnInput(nn.Module):
    """Adds to the hidden states behind a layer what they let through of its own input."""

    def __init__(self, spec: ModelSpec, given: LayerInputs, prefix: str, placement: Placement) -> None:
        super().__init__()
        names = spec.names
        self.gate = _whole(prefix + names.own_gate, given.size, spec.hidden_size, placement)
        self.activate = activation(spec)
        self.output = _whole(prefix + names.own_output, spec.hidden_size, given.size, placement)
        self.norm = Norm(prefix + names.own_norm, spec.hidden_size, spec.norm, placement)

    def forward(self, x: torch.Tensor, own: torch.Tensor, adapters: AdapterRows | None) -> torch.Tensor:
        """x: [num_tokens, hidden_size], own: [num_tokens, size]; what is to be added to x."""
        through = self.activate(torch.cat((self.gate(x, adapters), own), dim=1))
        added: torch.Tensor = self.norm(self.output(through, adapters), adapters=adapters)
        return added


def _whole(name: str, size: int, inputs: int, placement: Placement) -> ColumnLinear:
    """A small projection that every rank computes whole."""
    return ColumnLinear([[Rows(name, size, 0, size)]], inputs, False, placement, is_sensitive=True)
