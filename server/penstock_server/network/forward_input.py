"""The input of a model for one step: its tokens, and where in the cache their keys and values go."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from penstock_kernels import AdapterRows, AttentionSpans, DecodeSpans, RecurrentSpans


class Taps(NamedTuple):
    """Where a decoder leaves hidden states of a step: what these layers take; behind the last, what it returns."""

    layers: tuple[int, ...]
    states: torch.Tensor  # [len(layers), num_tokens, hidden_size]
    # Whether the first of these are only those of `ForwardInput.read`, where this is not None.
    of_read: bool = False

    def take(self, layer: int, residual: torch.Tensor, x: torch.Tensor | None = None) -> None:
        """`residual`, or its sum with `x`, is what a layer takes."""
        for place, tapped in zip(self.states, self.layers, strict=True):
            if tapped == layer:
                place = place[: len(residual)]
                place.copy_(residual)
                if x is not None:
                    place.add_(x)


class TapShape(NamedTuple):
    """Which hidden states a drafter reads."""

    layers: tuple[int, ...]
    size: int
    # Whether only those are of use from which tokens are sampled. They are what the model returns.
    of_read: bool = False

    def rows(self, num_tokens: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for them as they go from stage to stage: [num_tokens, len(layers) * size]."""
        return torch.zeros(num_tokens, len(self.layers) * self.size, dtype=dtype, device=device)

    def taps(self, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Taps:
        """Memory for those of a step."""
        sizes = (len(self.layers), num_tokens, self.size)
        return self.taps_in(torch.empty(sizes, dtype=dtype, device=device))

    def taps_in(self, states: torch.Tensor) -> Taps:
        """Those that lie in this memory."""
        return Taps(self.layers, states, self.of_read)


class ReadRows(NamedTuple):
    """The rows whose hidden states are read behind the last layer, where these are few. Of the other rows, the last
    layer that keeps anything of its tokens computes only what it keeps, and layers behind it compute nothing."""

    rows: torch.Tensor  # [num_read] int64, one at least
    # What a model takes where these are all of its rows.
    inputs: "ForwardInput"


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """Every token of every span, in order."""

    token_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    cache_positions: (
        torch.Tensor
    )  # [num_tokens] int64: block * block_size + offset of each token's key and value
    spans: AttentionSpans | DecodeSpans
    slots: torch.Tensor  # [num_spans] int64: whose tokens they are
    # The number of the adapter that each token uses; None: no token uses one.
    adapters: AdapterRows | None = None
    # None: nobody reads hidden states.
    taps: Taps | None = None
    # The hidden states that heads take beside tokens, [num_tokens, hidden_size]; None: the model takes none.
    given: torch.Tensor | None = None
    # The hidden states from the stage before, [num_tokens, hidden_size]; None in the first stage.
    received: torch.Tensor | None = None
    # The spans for layers with states, where some of these are kept; None: they follow from `spans`.
    recurrent: RecurrentSpans | None = None
    # None: all rows may be read.
    read: ReadRows | None = None

    def of_read(self, rows: torch.Tensor) -> torch.Tensor:
        """Of all rows those that are read."""
        return rows if self.read is None else rows.index_select(0, self.read.rows)
