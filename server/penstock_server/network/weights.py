"""Loads a rank's slices of a checkpoint into its parameters.

On a CPU, slices that need no change stay in the files, as mapped pages that all ranks and the page cache share. The
rest is copied one tensor at a time, and only what is kept is read.
"""

import logging
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

import torch
from penstock_kernels import all_finite
from safetensors import SafetensorError, safe_open
from torch import nn

from penstock_server.base.errors import StartError
from penstock_server.base.progress import Progress
from penstock_server.files.checkpoint import Checkpoint, Entry

logger = logging.getLogger(__name__)

# What is done to a slice before it is stored.
Arrange = Callable[[torch.Tensor], torch.Tensor]
# Whether the checkpoint has a tensor.
Has = Callable[[str], bool]
# Where in a parameter a slice goes.
Index = int | slice | tuple[int | slice, ...]
# A layer and the name of the attribute.
Parameter = tuple[nn.Module, str]

# Names of the files' types.
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# Standard deviation of dummy weights: small enough for many layers, large enough to be no rounding error.
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
    # Whether the module also takes a tuple of slices of rows in the place of the parameter that they fill.
    may_stay_apart: bool = False

    @property
    def parameter(self) -> Parameter:
        """The parameter that it fills a part of."""
        return self.module, self.attribute

    @property
    def start(self) -> int:
        """The first row that it fills."""
        return self.index.start or 0 if isinstance(self.index, slice) else 0

    def whole(self) -> torch.Tensor:
        """The parameter."""
        parameter: torch.Tensor = getattr(self.module, self.attribute)
        return parameter

    def target(self) -> torch.Tensor:
        """The part of the parameter to fill."""
        return self.whole()[self.index]


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
    wanted.sort(key=lambda pair: (pair[0].file, pair[0].begin))
    staying = _staying(wanted) if device.type == "cpu" else {}
    allocate(model, device, staying)
    progress = Progress(logger, "weights", sum(piece.target().nbytes for _entry, piece in wanted))
    for file, pairs in groupby(wanted, lambda pair: pair[0].file):
        for piece, part in _read(file, pairs):
            if piece.parameter in staying:
                staying[piece.parameter].append((piece, part))
            else:
                piece.target().copy_(part if piece.arrange is None else piece.arrange(part))
            progress.add(part.nbytes)
    for (module, attribute), slices in staying.items():
        _keep(module, attribute, slices)


def _staying(wanted: list[tuple[Entry, Piece]]) -> dict[Parameter, list[tuple[Piece, torch.Tensor]]]:
    """The parameters that need no memory of their own, with room for their slices."""
    moving = {piece.parameter for entry, piece in wanted if not _can_stay(entry, piece)}
    return {piece.parameter: [] for _entry, piece in wanted if piece.parameter not in moving}


def _can_stay(entry: Entry, piece: Piece) -> bool:
    """Whether the numbers of the slice are the target as they are."""
    target, slice_shape = piece.target(), tuple(part.stop - part.start for part in piece.window)
    fits = piece.may_stay_apart or target.shape == piece.whole().shape
    return (
        fits and piece.arrange is None and (DTYPES[entry.dtype], slice_shape) == (target.dtype, target.shape)
    )


def _keep(module: nn.Module, attribute: str, slices: list[tuple[Piece, torch.Tensor]]) -> None:
    """Slices that stay in the files become the parameter, or a tuple in its place."""
    parts = [_aligned(part) for _piece, part in sorted(slices, key=lambda pair: pair[0].start)]
    delattr(module, attribute)
    if len(parts) == 1:
        module.register_buffer(attribute, parts[0])
    else:
        setattr(module, attribute, tuple(parts))


def _aligned(part: torch.Tensor) -> torch.Tensor:
    """A copy if the numbers are not aligned: the header of a file may have any length."""
    return part if part.data_ptr() % part.element_size() == 0 else part.clone()


def fill_with_noise(model: nn.Module, device: torch.device) -> None:
    """Random weights for measurements, the same on every start."""
    allocate(model, device)
    generator = torch.Generator(device).manual_seed(0)
    for buffer in model.buffers():
        buffer.normal_(0.0, _DUMMY_SCALE, generator=generator)


def allocate(model: nn.Module, device: torch.device, without: Container[Parameter] = ()) -> None:
    """Memory for all other buffers. (`Module.to_empty` does the same, but imports sympy.)"""
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if (module, name) not in without:
                setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))


def _read(file: Path, pairs: Iterable[tuple[Entry, Piece]]) -> Iterator[tuple[Piece, torch.Tensor]]:
    """This rank's slices of the tensors of one file, checked."""
    try:
        with safe_open(file, framework="pt") as opened:
            for entry, piece in pairs:
                part = read_slice(opened, entry.name, piece)
                _check_finite(part, entry)
                yield piece, part
    except (SafetensorError, OSError) as error:
        raise StartError(f"{file}: {error}; download it again") from None


def read_slice(opened: safe_open, name: str, piece: Piece) -> torch.Tensor:
    """This rank's part, as mapped pages of the file: nothing is copied, and pages are read when they are used."""
    part: torch.Tensor = opened.get_tensor(name)[piece.window]  # type: ignore[no-untyped-call]
    return part


def _check_finite(part: torch.Tensor, entry: Entry) -> None:
    if all_finite(part):
        return
    raise StartError(
        f"{entry.file}: tensor {entry.name} holds numbers that are not finite; download it again"
    )
