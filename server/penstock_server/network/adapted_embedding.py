"""Fits what an adapter does to the embeddings of the input to this rank's part of the vocabulary."""

import torch
from penstock_kernels import EmbeddingWeights

from penstock_server.network.adapter_tensors import TensorReader, tokens_of
from penstock_server.network.layers.embedding import VocabEmbedding


def fit_embedding(embedding: VocabEmbedding, reader: TensorReader) -> EmbeddingWeights | None:
    """This rank's part, in float32; None where the adapter does nothing to embeddings."""
    names = reader.modules.get(embedding.name, {})
    if "base" in names:
        reader.check_base(names["base"], embedding.name)
    here = slice(embedding.first, embedding.stop)
    every = torch.arange(embedding.stop - embedding.first, dtype=torch.int32)
    if "embedding A" in names:
        down, up = reader.numbers(names["embedding A"]), reader.numbers(names["embedding B"])
        up = up * reader.folder.config.scale(embedding.name, down.shape[0])
        if "magnitude" not in names:
            return EmbeddingWeights(down.T[here], every, up.T)
        # Norms are those of all tokens, so every rank computes the whole.
        whole = reader.base(names["magnitude"], embedding.name, embedding.shape).float() + down.T @ up.T
        return EmbeddingWeights(
            (whole * (reader.numbers(names["magnitude"]) / whole.norm(dim=0)))[here], every
        )
    if "saved" in names:
        return EmbeddingWeights(reader.numbers(names["saved"])[here], every)
    if "tokens" in names:
        return _of_tokens(
            embedding, tokens_of(reader.folder, names["tokens"]), reader.numbers(names["tokens"])
        )
    return None


def _of_tokens(embedding: VocabEmbedding, tokens: tuple[int, ...], rows: torch.Tensor) -> EmbeddingWeights:
    """Rows of some tokens."""
    all_of_them = torch.tensor(tokens, dtype=torch.int64)
    mine = (all_of_them >= embedding.first) & (all_of_them < embedding.stop)
    row_of = torch.full((embedding.stop - embedding.first,), -1, dtype=torch.int32)
    row_of[all_of_them[mine] - embedding.first] = torch.arange(int(mine.sum()), dtype=torch.int32)
    return EmbeddingWeights(rows[mine], row_of)
