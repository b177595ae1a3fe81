"""Heads of MEDUSA: each guesses the token so many positions ahead of the one that the model itself predicts, from the
hidden state behind the last norm.

Their residual layers are whole on every rank; the rows of a vocabulary are divided.
"""

from typing import NamedTuple

import torch
from penstock_kernels import activate
from torch import nn

from penstock_server.architectures.spec import ModelSpec
from penstock_server.network.decoder import Decoder
from penstock_server.network.forward_input import TapShape
from penstock_server.network.layers.embedding import VocabEmbedding
from penstock_server.network.layers.linear import ColumnLinear, Rows
from penstock_server.network.layers.placement import Placement


class MedusaShape(NamedTuple):
    """The fields of `MedusaFolder` that shape the heads."""

    num_heads: int
    num_layers: int
    has_own_logits: bool
    choices: tuple[tuple[int, ...], ...] = ()


class MedusaHeads(nn.Module):
    """All heads over one model. Built on the meta device; `weights.load_weights` gives it memory."""

    def __init__(self, shape: MedusaShape, target: Decoder, placement: Placement) -> None:
        super().__init__()
        spec = target.spec
        self.num_heads, self.vocab_size = shape.num_heads, spec.vocab_size
        # The ways of a tree that the heads were published with, by the ranks of guesses; the most important first.
        self.choices = shape.choices
        self.dtype = placement.dtype
        # The output of the model's last layer, which the heads read. Stages hand on those of all tokens.
        is_whole = placement.stage.count == 1
        self.taps = TapShape((spec.num_layers,), spec.hidden_size, of_read=is_whole)
        # Functions, so that the model is no part of this one.
        self._norm, self._scores = target.final_norm.forward, target.scores
        with torch.device("meta"):
            names = [f"{head}.0.linear" for head in range(self.num_heads)]
            self.first = _linear(names, spec.hidden_size, placement)
            self._heads = [_Head(head, shape, spec, placement) for head in range(self.num_heads)]
            self.heads = nn.ModuleList(self._heads)

    @property
    def most_choices(self) -> int:
        """Guesses of a head that such a tree needs; 1 where there is none."""
        return 1 + max((rank for choice in self.choices for rank in choice), default=0)

    def forward(self, states: torch.Tensor, first: int, count: int) -> torch.Tensor:
        """[num_rows, hidden_size], as the model returns them, to [num_rows, count, vocab_size] in float32.

        Of so many heads from the first one on.
        """
        normed = self._norm(states)
        moved = activate(self.first(normed), "silu").view(len(normed), self.num_heads, -1)
        # [num_rows, count, hidden_size]
        hidden = normed.unsqueeze(1) + moved[:, first : first + count]
        heads = self._heads[first : first + count]
        if heads[0].has_more:
            hidden = torch.stack([head(hidden[:, place]) for place, head in enumerate(heads)], dim=1)
        if heads[0].vocabulary is None:
            return self._scores(hidden.flatten(0, 1)).view(len(normed), count, -1)
        return torch.stack([head.logits(hidden[:, place]) for place, head in enumerate(heads)], dim=1)


class _Head(nn.Module):
    """The part of a head behind its first residual layer."""

    def __init__(self, number: int, shape: MedusaShape, spec: ModelSpec, placement: Placement) -> None:
        super().__init__()
        self.number = number
        self.layers = nn.ModuleList(
            _linear([f"{number}.{layer}.linear"], spec.hidden_size, placement)
            for layer in range(1, shape.num_layers)
        )
        name, sizes = f"{number}.{shape.num_layers}", (spec.vocab_size, spec.hidden_size)
        is_own = shape.has_own_logits
        self.vocabulary = VocabEmbedding(name, *sizes, placement, head=name) if is_own else None

    @property
    def has_more(self) -> bool:
        """Whether there is a residual layer behind the first."""
        return len(self.layers) > 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = hidden + activate(layer(hidden), "silu")
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, vocab_size] in float32, where the head makes them itself."""
        assert self.vocabulary is not None, "the head of the model makes them"
        return self.vocabulary.logits(hidden)


def _linear(names: list[str], size: int, placement: Placement) -> ColumnLinear:
    """Matrices of one input, whole on every rank."""
    return ColumnLinear([[Rows(name, size, 0, size) for name in names]], size, True, placement)
