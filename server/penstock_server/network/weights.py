"""Loads a rank's slices of a checkpoint into its parameters.

On a CPU, slices that need no change stay in the files, as mapped pages that all ranks and the page cache share. The
rest is copied one tensor at a time, and only what is kept is read.
"""

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Protocol

import torch
from penstock_kernels import Matrix, all_finite
from penstock_kernels.reference.quantized_linear import dequantize
from safetensors import SafetensorError
from torch import nn

from penstock_server.base.errors import StartError
from penstock_server.base.progress import Progress
from penstock_server.files.checkpoint import Checkpoint, Entry
from penstock_server.network.heap import blocks_apart
from penstock_server.network.large_pages import LargePages
from penstock_server.network.quantization.quantization import Quantization
from penstock_server.network.quantization.scheme import Arrange, MatrixPart, Source
from penstock_server.network.tensor_files import TensorFile, open_tensors

logger = logging.getLogger(__name__)

# Whether the checkpoint has a tensor.
Has = Callable[[str], bool]
# Where in a parameter a slice goes.
Index = int | slice | tuple[int | slice, ...]
# A layer and the name of the attribute.
Parameter = tuple[nn.Module, str]

_CPU = torch.device("cpu")
# So many numbers of a quantized matrix that is needed as numbers are in memory at a time, beside these.
_MAX_NUMBERS = 1 << 22
# Names of the files' types.
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# Standard deviation of dummy weights: small enough for many layers, large enough to be no rounding error.
_DUMMY_SCALE = 0.02


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of one checkpoint tensor and the part of a parameter that it fills."""

    name: str
    # The shape of the whole tensor in the checkpoint.
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
    # The rows as parts of a matrix, in their order, where the module also takes weights of few bits, see
    # `TakesMatrices`.
    matrices: tuple[MatrixPart, ...] = ()
    # Whether it fills a parameter of another rank: here its tensors are checked, and it is not read.
    is_elsewhere: bool = False

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


class TakesMatrices(Protocol):
    """A layer whose parameter may become matrices of few bits."""

    def take_matrices(self, attribute: str, found: tuple[Matrix, ...]) -> None:
        """Use these in the place of the parameter, which is gone: those of each of its pieces, in their order."""
        ...


def pieces_of(model: nn.Module, has: Has) -> list[Piece]:
    """The pieces of all layers in a model, with those of stages that other ranks have."""
    elsewhere: list[nn.Module] = getattr(model, "elsewhere", [])
    found = _pieces_in(model, has)
    found += (replace(piece, is_elsewhere=True) for module in elsewhere for piece in _pieces_in(module, has))
    return found


def _pieces_in(model: nn.Module, has: Has) -> list[Piece]:
    found: list[Piece] = []
    for module in model.modules():
        if hasattr(module, "pieces"):
            layer: Loadable = module  # type: ignore[assignment]
            found.extend(layer.pieces(has))
    return found


def load_weights(
    model: nn.Module,
    checkpoint: Checkpoint,
    device: torch.device,
    quantization: Quantization | None = None,
) -> None:
    """Check every tensor against the model, which is still on the meta device; only then allocate, and fill."""
    if quantization is None:
        _load_plain(pieces_of(model, checkpoint.has), model, checkpoint, device)
        return
    with quantization.stored, blocks_apart():
        _load_quantized(model, checkpoint, device, quantization)
    quantization.check_inputs()
    logger.info("%s", quantization.summary())


def _load_quantized(
    model: nn.Module, checkpoint: Checkpoint, device: torch.device, quantization: Quantization
) -> None:
    pieces = pieces_of(model, quantization.has)
    held = {
        id(piece)
        for piece in pieces
        if piece.matrices and all(quantization.holds(part.source) for part in piece.matrices)
    }
    # A parameter of which any part is quantized becomes matrices.
    parameters = {piece.parameter: None for piece in pieces if id(piece) in held}
    plain = [piece for piece in pieces if piece.parameter not in parameters]
    apart = [piece for piece in pieces if piece.parameter in parameters]
    for piece in apart:
        if id(piece) not in held:
            checkpoint.require(piece.name, piece.shape)
    restored = [piece for piece in plain if _is_restored(piece, quantization)]
    gone = {id(piece) for piece in (*restored, *(piece for piece in apart if id(piece) in held))}
    quantization.check_all(piece.name for piece in pieces if id(piece) not in gone)
    _load_plain([piece for piece in plain if id(piece) not in gone], model, checkpoint, device, parameters)
    for piece in restored:
        if not piece.is_elsewhere:
            _restore(piece, quantization)
    apart = [piece for piece in apart if not piece.is_elsewhere]
    here = set(model.modules())
    found: dict[Parameter, list[Matrix]] = {parameter: [] for parameter in parameters if parameter[0] in here}
    progress = Progress(logger, "quantized weights", len(apart))
    with quantization.reading([part for piece in apart if id(piece) in held for part in piece.matrices]):
        for piece in apart:
            if id(piece) in held:
                found[piece.parameter] += [quantization.read(*part, device) for part in piece.matrices]
            else:
                found[piece.parameter].append(_plain_part(piece, quantization, device))
            progress.add(1)
    for (module, attribute), matrices in found.items():
        delattr(module, attribute)
        taker: TakesMatrices = module  # type: ignore[assignment]
        taker.take_matrices(attribute, tuple(matrices))


def _is_restored(piece: Piece, quantization: Quantization) -> bool:
    """Whether a part of a matrix is quantized that the layer needs as numbers, such as a latent's way to keys."""
    if piece.matrices or len(piece.shape) != 2 or not piece.name.endswith(".weight"):
        return False
    return not quantization.stored.is_in_16_bits(piece.name) and quantization.holds(_source(piece))


def _restore(piece: Piece, quantization: Quantization) -> None:
    """Fill the target with numbers, some rows at a time unless they get another order: a vocabulary is large."""
    (rows, columns), target = piece.window, piece.target()
    if piece.arrange is not None:
        target.copy_(piece.arrange(_restored(piece, rows, quantization)))
        return
    step = max(1, _MAX_NUMBERS // max(1, columns.stop - columns.start))
    for begin in range(rows.start, rows.stop, step):
        end = min(begin + step, rows.stop)
        target[begin - rows.start : end - rows.start].copy_(_restored(piece, slice(begin, end), quantization))


def _restored(piece: Piece, rows: slice, quantization: Quantization) -> torch.Tensor:
    return dequantize(quantization.read(_source(piece), rows, piece.window[1], None, _CPU))


def _source(piece: Piece) -> Source:
    return Source(piece.name.removesuffix(".weight"), (piece.shape[0], piece.shape[1]))


def _plain_part(piece: Piece, quantization: Quantization, device: torch.device) -> Matrix:
    """A part in 16 bits of a parameter of which other parts are quantized."""
    part = quantization.stored.read_scales(piece.name)[piece.window]
    part = part if piece.arrange is None else piece.arrange(part)
    return part.to(device, piece.whole().dtype)


def _load_plain(
    pieces: list[Piece],
    model: nn.Module,
    checkpoint: Checkpoint,
    device: torch.device,
    without: Collection[Parameter] = (),
) -> None:
    checked = [(checkpoint.require(piece.name, piece.shape), piece) for piece in pieces]
    wanted = [(entry, piece) for entry, piece in checked if not piece.is_elsewhere]
    wanted.sort(key=lambda pair: (pair[0].file, pair[0].begin))
    staying = _staying(wanted) if device.type == "cpu" else {}
    allocate(model, device, {*staying, *without})
    progress = Progress(logger, "weights", sum(piece.target().nbytes for _entry, piece in wanted))
    for file, pairs in groupby(wanted, lambda pair: pair[0].file):
        for piece, part in _read(checkpoint, file, pairs, stays=bool(staying)):
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
    generator = torch.Generator(device)
    for number, buffer in enumerate(model.buffers()):
        # Ranks may have parts of different sizes before one that all have alike.
        generator.manual_seed(number)
        buffer.normal_(0.0, _DUMMY_SCALE, generator=generator)


def allocate(model: nn.Module, device: torch.device, without: Container[Parameter] = ()) -> None:
    """Memory for all other buffers. (`Module.to_empty` does the same, but imports sympy.)"""
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if (module, name) not in without:
                setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))


def _read(
    checkpoint: Checkpoint, file: Path, pairs: Iterable[tuple[Entry, Piece]], stays: bool
) -> Iterator[tuple[Piece, torch.Tensor]]:
    """This rank's slices of the tensors of one file, checked. `stays`: some of them will be used in the file."""
    try:
        with open_tensors(checkpoint, file) as opened, LargePages(file) if stays else nullcontext() as pages:
            for entry, piece in pairs:
                if pages is not None:
                    pages.read_to(entry.end)
                part = read_slice(opened, entry.name, piece)
                _check_finite(part, entry)
                yield piece, part
    except (SafetensorError, OSError) as error:
        raise StartError(f"{file}: {error}; download it again") from None


def read_slice(opened: TensorFile, name: str, piece: Piece) -> torch.Tensor:
    """This rank's part, as mapped pages of the file: nothing is copied, and pages are read when they are used."""
    part: torch.Tensor = opened.get_tensor(name)[piece.window]
    return part


def _check_finite(part: torch.Tensor, entry: Entry) -> None:
    if all_finite(part):
        return
    raise StartError(
        f"{entry.file}: tensor {entry.name} holds numbers that are not finite; download it again"
    )
