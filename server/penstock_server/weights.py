"""Streams a rank's slices of a checkpoint into its parameters: one tensor at a time, nothing read that is not kept."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from penstock_server.checkpoint import Checkpoint, Entry
from penstock_server.errors import StartError
from penstock_server.progress import Progress

logger = logging.getLogger(__name__)

# What is done to a slice before it is stored.
Arrange = Callable[[torch.Tensor], torch.Tensor]
# Whether the checkpoint has a tensor.
Has = Callable[[str], bool]
# Where in a parameter a slice goes.
Index = int | slice | tuple[int | slice, ...]

# Of dummy weights: small enough for many layers, large enough to be no rounding error.
_DUMMY_SCALE = 0.02


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of one checkpoint tensor and the part of a parameter that it fills."""

    name: str
    # Of the whole tensor in the checkpoint.
    shape: tuple[int, ...]
    module: nn.Module
    attribute: str
    # The slice, one for each dimension.
    window: tuple[slice, ...]
    # A vector fills several rows by repetition.
    index: Index
    arrange: Arrange | None = None

    def target(self) -> torch.Tensor:
        """The part of the parameter to fill."""
        parameter: torch.Tensor = getattr(self.module, self.attribute)
        return parameter[self.index]


class Loadable(Protocol):
    """A layer that knows where its weights come from."""

    def pieces(self, has: Has) -> Iterator[Piece]:
        """Everything to read from the checkpoint."""
        ...


def pieces_of(model: nn.Module, has: Has) -> list[Piece]:
    """The pieces of all layers in a model."""
    found: list[Piece] = []
    for module in model.modules():
        if hasattr(module, "pieces"):
            layer: Loadable = module  # type: ignore[assignment]
            found.extend(layer.pieces(has))
    return found


def load_weights(model: nn.Module, checkpoint: Checkpoint, device: torch.device) -> None:
    """Check every tensor against the model, which is still on the meta device; only then allocate, and fill."""
    wanted = [
        (checkpoint.require(piece.name, piece.shape), piece) for piece in pieces_of(model, checkpoint.has)
    ]
    allocate(model, device)
    wanted.sort(key=lambda pair: (pair[0].file, pair[0].begin))
    by_file: dict[Path, list[tuple[Entry, Piece]]] = {}
    for entry, piece in wanted:
        by_file.setdefault(entry.file, []).append((entry, piece))
    progress = Progress(logger, "weights", sum(piece.target().nbytes for _entry, piece in wanted))
    for file, pairs in by_file.items():
        _fill_from(file, pairs, progress)


def fill_with_noise(model: nn.Module, device: torch.device) -> None:
    """Weights that mean nothing, for measuring: the same on every start."""
    allocate(model, device)
    generator = torch.Generator(device).manual_seed(0)
    for buffer in model.buffers():
        buffer.normal_(0.0, _DUMMY_SCALE, generator=generator)


def allocate(model: nn.Module, device: torch.device) -> None:
    """Memory for every buffer. `Module.to_empty` does the same after importing half of sympy."""
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))


def _fill_from(file: Path, pairs: list[tuple[Entry, Piece]], progress: Progress) -> None:
    try:
        with safe_open(file, framework="pt") as opened:
            for entry, piece in pairs:
                part = read_slice(opened, entry.name, piece)
                _check_finite(part, entry)
                target = piece.target()
                target.copy_(part if piece.arrange is None else piece.arrange(part))
                progress.add(target.nbytes)
    except (SafetensorError, OSError) as error:
        raise StartError(f"{file}: {error}; download it again") from None


def read_slice(opened: safe_open, name: str, piece: Piece) -> torch.Tensor:
    """This rank's part, as pages of the file: only what is looked at is read, and nothing is copied yet."""
    part: torch.Tensor = opened.get_tensor(name)[piece.window]  # type: ignore[no-untyped-call]
    return part


def _check_finite(part: torch.Tensor, entry: Entry) -> None:
    """One pass over smallest and largest, which are NaN where any number is: twenty times as fast as asking each."""
    if part.numel() == 0 or all(bool(end.isfinite()) for end in torch.aminmax(part)):
        return
    raise StartError(
        f"{entry.file}: tensor {entry.name} holds numbers that are not finite; download it again"
    )
