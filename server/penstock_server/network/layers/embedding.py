"""Embeddings of tokens and positions, and the language-model head. The vocabulary is divided among ranks."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from penstock_kernels import embedding, linear
from torch import nn

from penstock_server.network.layers.placement import Placement
from penstock_server.network.weights import Has, Piece


class VocabEmbedding(nn.Module):
    """Rows `first .. stop` of the vocabulary; the share of the last rank may be smaller and is padded."""

    weight: torch.Tensor

    def __init__(self, name: str, vocab_size: int, hidden_size: int, placement: Placement) -> None:
        super().__init__()
        self.name = name
        self.shape = (vocab_size, hidden_size)
        self.placement = placement
        group = placement.group
        share = -(-vocab_size // group.size)
        self.first = min(group.rank * share, vocab_size)
        self.stop = min(self.first + share, vocab_size)
        self.register_buffer("weight", placement.empty(share, hidden_size))

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] to [num_tokens, hidden_size]."""
        # Rows that pad the last rank's share belong to no token.
        return self.placement.group.all_reduce(embedding(token_ids, self.weight, self.first))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] to [num_rows, vocab_size] in float32, on every rank: the head's use of the rows."""
        part = linear(hidden, self.weight, None, self.placement.batch_invariant)
        return self.placement.group.all_gather_columns(part)[:, : self.shape[0]].float()

    def pieces(self, has: Has) -> Iterator[Piece]:
        if self.stop > self.first:
            window = (slice(self.first, self.stop), slice(0, self.shape[1]))
            target = slice(0, self.stop - self.first)
            yield Piece(f"{self.name}.weight", self.shape, self, "weight", window, target)


class PositionEmbedding(nn.Module):
    """Learned vectors of positions, whole on every rank."""

    weight: torch.Tensor

    def __init__(self, name: str, num_positions: int, hidden_size: int, placement: Placement) -> None:
        super().__init__()
        self.name = name
        self.shape = (num_positions, hidden_size)
        self.register_buffer("weight", placement.empty(*self.shape))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """[num_tokens] to [num_tokens, hidden_size]."""
        return F.embedding(positions, self.weight)

    def pieces(self, has: Has) -> Iterator[Piece]:
        rows, columns = (slice(0, size) for size in self.shape)
        yield Piece(f"{self.name}.weight", self.shape, self, "weight", (rows, columns), rows)
