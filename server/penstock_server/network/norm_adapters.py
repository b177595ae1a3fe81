"""Fits the norms that an adapter has to this rank's part of those of a model, as the model's own are read."""

from penstock_server.network.adapter_tensors import TensorReader
from penstock_server.network.layers.own_weights import TakesOwn, Vectors
from penstock_server.network.weights import Piece

# The names in `by_module` for the tensors of a norm.
_KINDS = {"weight": "saved", "bias": "bias"}


def modules_of_norm(norm: TakesOwn) -> dict[str, tuple[int, ...]]:
    """The modules that it stands for, and the shape of the tensors of each."""
    return {piece.name.rpartition(".")[0]: piece.shape for piece in _pieces(norm)}


def fit_own(norm: TakesOwn, reader: TensorReader) -> Vectors | None:
    """This rank's part; None where the adapter leaves the norm as it is. Raises AdapterRefused."""
    pieces = _pieces(norm)
    for module in modules_of_norm(norm):
        names = reader.modules.get(module, {})
        if "bias" in names and f"{module}.bias" not in {piece.name for piece in pieces}:
            raise reader.refused(names["bias"], "the model has no bias there")
    changed = [(piece, name) for piece in pieces if (name := _replaced(piece, reader)) is not None]
    if not changed:
        return None
    own = {piece.attribute: piece.whole().detach().cpu().clone() for piece in pieces}
    for piece, name in changed:
        vector = own[piece.attribute]
        part = reader.numbers(name)[piece.window].to(vector.dtype)
        vector[piece.index] = part if piece.arrange is None else piece.arrange(part)
    return own


def _pieces(norm: TakesOwn) -> list[Piece]:
    return list(norm.pieces(lambda _name: True))


def _replaced(piece: Piece, reader: TensorReader) -> str | None:
    """The adapter's tensor in the place of a piece's, if it has one."""
    module, _, kind = piece.name.rpartition(".")
    return reader.modules.get(module, {}).get(_KINDS[kind])
