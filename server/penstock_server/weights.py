"""Streams a rank's slices of a checkpoint into its parameters: one tensor at a time, nothing read that is not kept."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from penstock_server.checkpoint import Checkpoint
from penstock_server.errors import StartError


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of one checkpoint tensor and the rows of a parameter that it fills."""

    name: str
    # Of the whole tensor in the checkpoint.
    shape: tuple[int, ...]
    module: nn.Module
    attribute: str
    # The slice: `start .. stop` of dimension `dim`.
    dim: int
    start: int
    stop: int
    # Rows of the parameter: `row .. row + num_rows`. A vector fills several rows by repetition.
    row: int
    num_rows: int

    def target(self) -> torch.Tensor:
        """The part of the parameter to fill."""
        parameter: torch.Tensor = getattr(self.module, self.attribute)
        return parameter.narrow(0, self.row, self.num_rows)


class Loadable(Protocol):
    """A layer that knows where its weights come from."""

    def pieces(self) -> Iterator[Piece]:
        """Everything to read from the checkpoint."""
        ...


def pieces_of(model: nn.Module) -> list[Piece]:
    """The pieces of all layers in a model."""
    found: list[Piece] = []
    for module in model.modules():
        if hasattr(module, "pieces"):
            layer: Loadable = module  # type: ignore[assignment]
            found.extend(layer.pieces())
    return found


def load_weights(model: nn.Module, checkpoint: Checkpoint, device: torch.device) -> None:
    """Check every tensor against the model, which is still on the meta device; only then allocate, and fill."""
    pieces = pieces_of(model)
    entries = {piece.name: checkpoint.require(piece.name, piece.shape) for piece in pieces}
    _allocate(model, device)
    pieces.sort(key=lambda piece: (entries[piece.name].file, entries[piece.name].begin))
    by_file: dict[Path, list[Piece]] = {}
    for piece in pieces:
        by_file.setdefault(entries[piece.name].file, []).append(piece)
    for file, wanted in by_file.items():
        _fill_from(file, wanted)


def _allocate(model: nn.Module, device: torch.device) -> None:
    """Memory for every buffer. `Module.to_empty` does the same after importing half of sympy."""
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))


def _fill_from(file: Path, pieces: list[Piece]) -> None:
    try:
        with safe_open(file, framework="pt") as opened:
            for piece in pieces:
                piece.target().copy_(read_slice(opened, piece))
    except (SafetensorError, OSError) as error:
        raise StartError(f"{file}: {error}; download it again") from None


def read_slice(opened: safe_open, piece: Piece) -> torch.Tensor:
    """Only the bytes of this rank's part."""
    part = opened.get_slice(piece.name)  # type: ignore[no-untyped-call]
    window = slice(piece.start, piece.stop)
    read: torch.Tensor = part[window] if piece.dim == 0 else part[:, window]
    return read
