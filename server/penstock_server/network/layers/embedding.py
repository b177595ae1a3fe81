"""Embeddings of tokens and positions, and the language-model head. The vocabulary is divided among ranks."""

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from penstock_kernels import (
    AdapterRows,
    AdapterTable,
    EmbeddingTable,
    Matrix,
    adapt_embedding,
    embedding,
    linear,
    quantized_linear,
)
from torch import nn

from penstock_server.network.layers.adapted import AdaptedPart, adapt
from penstock_server.network.layers.placement import Placement
from penstock_server.network.quantization.scheme import MatrixPart, Source
from penstock_server.network.weights import Has, Piece

# The rows of a head that are in memory as floats at a time.
_ROWS_AT_A_TIME = 4096


class VocabEmbedding(nn.Module):
    """Rows `first .. stop` of the vocabulary; the share of the last rank may be smaller and is padded.

    `head`: the name of the module that makes logits of these rows, which may be another than that of the weights.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    # The matrix in the place of the weight, where the head is quantized.
    matrix: Matrix | None = None

    def __init__(
        self,
        name: str,
        vocab_size: int,
        hidden_size: int,
        placement: Placement,
        bias: bool = False,
        head: str = "",
    ) -> None:
        super().__init__()
        self.name = name
        self.head = head
        self.shape = (vocab_size, hidden_size)
        self.placement = placement
        group = placement.group
        self.share = -(-vocab_size // group.size)
        self.first = min(group.rank * self.share, vocab_size)
        self.stop = min(self.first + self.share, vocab_size)
        self.register_buffer("weight", placement.empty(self.share, hidden_size))
        self.register_buffer("bias", placement.empty(self.share) if bias else None)
        self.num_columns = self.share
        # The adapters of the head, and those of the embeddings.
        self.adapters: AdapterTable | None = None
        self.embedding_adapters: EmbeddingTable | None = None
        self.is_summed = False

    def forward(self, token_ids: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """[num_tokens] to [num_tokens, hidden_size]. `adapters`: as `ForwardInput.adapters`."""
        # Rows that pad the last rank's share belong to no token.
        part = embedding(token_ids, self.weight, self.first)
        if adapters is not None and self.embedding_adapters is not None:
            adapt_embedding(part, token_ids, adapters, self.embedding_adapters, self.first)
        return self.placement.group.all_reduce(part)

    def logits(self, hidden: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """[num_rows, hidden_size] to [num_rows, vocab_size] in float32, on every rank: the head's use of the rows.

        `adapters`: as `ForwardInput.adapters`, of these rows.
        """
        part = self._product(hidden)
        if adapters is not None:
            adapt(part, hidden, adapters, self.adapters)
        return self.placement.group.all_gather_columns(part)[:, : self.shape[0]].float()

    def adapted_parts(self) -> list[list[AdaptedPart]]:
        """See `AdaptedLayer`: the parts of the head."""
        if not self.head:
            return [[]]
        columns, inputs = slice(0, self.stop - self.first), slice(0, self.shape[1])
        outputs = slice(self.first, self.stop)
        return [
            [AdaptedPart(self.head, self.shape, outputs, inputs, columns, is_head=True, stored=self.name)]
        ]

    def _product(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.matrix is None:
            return linear(hidden, self.weight, self.bias, self.placement.batch_invariant)
        bias = None if self.bias is None else self.bias[: self.stop - self.first]
        part = quantized_linear(hidden, self.matrix, bias, self.placement.batch_invariant)
        return F.pad(part, (0, self.share - part.shape[1]))

    def take_matrices(self, attribute: str, found: tuple[Matrix, ...]) -> None:
        """See `TakesMatrices`."""
        (self.matrix,) = found

    def pieces(self, has: Has) -> Iterator[Piece]:
        if self.stop > self.first:
            rows, columns = slice(self.first, self.stop), slice(0, self.shape[1])
            target = slice(0, self.stop - self.first)
            # Rows of tokens are looked up one by one, so only a head may be quantized.
            is_head = self.head == self.name
            matrices = (
                (MatrixPart(Source(self.name, self.shape, is_sensitive=True), rows, columns),)
                if is_head
                else ()
            )
            yield Piece(
                f"{self.name}.weight", self.shape, self, "weight", (rows, columns), target, matrices=matrices
            )
            if self.bias is not None:
                yield Piece(f"{self.name}.bias", self.shape[:1], self, "bias", (rows,), target)


class UnitHead(VocabEmbedding):
    """A head whose rows are made of length 1 as they are loaded: rows of few bits become numbers for that.

    It takes no adapters, which would be trained against rows of any length, and may bring such rows.
    """

    def adapted_parts(self) -> list[list[AdaptedPart]]:
        """See `AdaptedLayer`: there are no parts."""
        return [[]]

    def pieces(self, has: Has) -> Iterator[Piece]:
        for piece in super().pieces(has):
            is_bias = piece.attribute == "bias"
            yield piece if is_bias else replace(piece, arrange=self._of_length_one, matrices=())

    def _of_length_one(self, rows: torch.Tensor) -> torch.Tensor:
        """Computed in float32 and rounded once; some rows at a time, for a vocabulary is large."""
        found = torch.empty(rows.shape, dtype=self.placement.dtype)
        for begin in range(0, len(rows), _ROWS_AT_A_TIME):
            some = slice(begin, begin + _ROWS_AT_A_TIME)
            found[some] = F.normalize(rows[some].float(), dim=-1)
        return found


class PositionEmbedding(nn.Module):
    """Learned vectors of positions, whole on every rank. `offset` rows come before that of position 0."""

    weight: torch.Tensor

    def __init__(
        self, name: str, num_positions: int, hidden_size: int, placement: Placement, offset: int = 0
    ) -> None:
        super().__init__()
        self.name = name
        self.offset = offset
        self.shape = (num_positions + offset, hidden_size)
        self.register_buffer("weight", placement.empty(*self.shape))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """[num_tokens] to [num_tokens, hidden_size]."""
        return embedding(positions, self.weight[self.offset :])

    def pieces(self, has: Has) -> Iterator[Piece]:
        rows, columns = (slice(0, size) for size in self.shape)
        yield Piece(f"{self.name}.weight", self.shape, self, "weight", (rows, columns), rows)
