"""Quantized weights as the loader sees them: which matrices are quantized, their parts, and what came of it.

They are so in the checkpoint (here), or become so while they are read (`at_load`).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from penstock_kernels import Quantized
from penstock_kernels.base.quantized import moved
from penstock_kernels.reference.quantized_linear import dequantize

from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import IN_THE_PLACE_OF_WEIGHT, Checkpoint
from penstock_server.files.quantization import Declared
from penstock_server.network.quantization.rounded_inputs import NOT_ROUNDED, Rounding
from penstock_server.network.quantization.scheme import Arrange, MatrixPart, Scheme, Source
from penstock_server.network.quantization.stored import Stored
from penstock_server.network.quantization.table import format_of

# Tensors that are known and of no use here: scales of a cache are read elsewhere, and the rest can be computed.
_NOT_NEEDED = re.compile(
    r".*(\.inv_freq|\.masked_bias|\.attn\.bias|\.attention\.bias|\.[qkv]_scale|\.output_scale)"
)
_HEAD = "lm_head."


class QuantizationFacts(NamedTuple):
    """The result of quantization, for people; bytes are those of this rank."""

    format: str
    num_matrices: int
    num_bytes: int
    num_bytes_in_16_bits: int
    # Modules that stay in 16 bits or more, each once for all layers.
    plain: tuple[str, ...]
    # Whether an earlier start quantized them, and this one read what it had kept.
    from_cache: bool = False


class Quantization(ABC):
    """Use `stored` in a `with`: files are open until its end."""

    def __init__(self, name: str, checkpoint: Checkpoint, rounding: Rounding) -> None:
        # For people: "compressed-tensors pack-quantized".
        self.name = name
        self.stored = Stored(checkpoint)
        # Names of modules.
        self.plain: set[str] = set()
        self.quantized: set[str] = set()
        self._schemes: dict[Source, Scheme | None] = {}
        self._rounding = rounding
        self._num_bytes = self._num_bytes_before = 0
        self._with_rounding: set[Source] = set()

    @abstractmethod
    def find(self, source: Source) -> Scheme | None:
        """How a matrix is read; None where it stays in 16 bits."""

    @abstractmethod
    def check_all(self, plain: Iterable[str]) -> None:
        """Raise StartError for what does not fit together, given the names of tensors that stay in 16 bits."""

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor, or what stands for it."""
        module, _, last = name.rpartition(".")
        if last == "weight" and any(self.stored.has(f"{module}.{mark}") for mark in IN_THE_PLACE_OF_WEIGHT):
            return True
        return self.stored.has(name)

    def holds(self, source: Source) -> bool:
        """Whether a matrix is quantized; its tensors are checked then."""
        if source not in self._schemes:
            self._schemes[source] = self._find(source)
        return self._schemes[source] is not None

    @contextmanager
    def reading(self, parts: Sequence[MatrixPart]) -> Iterator[None]:
        """While these are read, in this order."""
        yield

    def read(
        self, source: Source, rows: slice, columns: slice, arrange: Arrange | None, device: torch.device
    ) -> Quantized:
        """A part of a matrix that is quantized, its rows in another order if `arrange` says so."""
        found = moved(self._part(MatrixPart(source, rows, columns, arrange)), device)
        self._num_bytes += found.nbytes
        self._num_bytes_before += 2 * found.shape[0] * found.shape[1]
        told = self._rounding.of(found)
        if told is not found:
            self._with_rounding.add(source)
        return told

    def _part(self, part: MatrixPart) -> Quantized:
        scheme = self._schemes[part.source]
        assert scheme is not None, "asked for what is quantized"
        found = scheme.read(part.source, self.stored, part.rows, part.columns)
        return found if part.arrange is None else found.reordered(part.arrange)

    def numbers(self, module: str) -> torch.Tensor | None:
        """A whole matrix as its codes mean it, outputs first, after the load; None where it is not quantized."""
        schemes = ((source, scheme) for source, scheme in self._schemes.items() if source.name == module)
        source, scheme = next(schemes, (None, None))
        if source is None or scheme is None:
            return None
        num_rows, num_columns = source.shape
        # Files of its own: any thread may ask.
        with Stored(self.stored.checkpoint) as stored:
            return dequantize(scheme.read(source, stored, slice(0, num_rows), slice(0, num_columns))).cpu()

    def check_inputs(self) -> None:
        """Raise StartError where rounded rows were asked for, and no matrix can multiply them."""
        if self._rounding.is_asked and not self._with_rounding:
            rounding = self._rounding
            raise StartError(
                f"{rounding.flag} is for {rounding.matrices}, and this model ({self.name}) has none; leave it out"
            )

    def facts(self) -> QuantizationFacts:
        """After everything has been read."""
        plain = tuple(sorted(self.plain))
        return QuantizationFacts(
            self.name, len(self.quantized), self._num_bytes, self._num_bytes_before, plain
        )

    def summary(self) -> str:
        """One line for people."""
        count = len(self._with_rounding)
        rounded = f"; {count} multiply rows of {self._rounding.rows}" if count else ""
        facts = self.facts()
        cached = ", from the cache" if facts.from_cache else ""
        return (
            f"{facts.format}{cached}: {facts.num_matrices} matrices take {_shown(facts.num_bytes)} in the place of "
            f"{_shown(facts.num_bytes_in_16_bits)}; in 16 bits: {', '.join(facts.plain) or 'none'}{rounded}"
        )

    def _find(self, source: Source) -> Scheme | None:
        scheme = self.find(source)
        if scheme is None:
            self.plain.add(last_parts(source.name))
            return None
        for wanted in scheme.wanted(source, self.stored):
            self.stored.check(wanted)
        self.quantized.add(f"{source.name} {source.expert}")
        return scheme


class StoredQuantization(Quantization):
    """A checkpoint that is quantized."""

    def __init__(self, declared: Declared, checkpoint: Checkpoint, rounding: Rounding = NOT_ROUNDED) -> None:
        self._format = format_of(declared)
        super().__init__(self._format.name, checkpoint, rounding)

    def find(self, source: Source) -> Scheme | None:
        is_plain = self.stored.is_in_16_bits(source.tensor("weight"))
        return None if is_plain else self._format.scheme(source, self.stored)

    def check_all(self, plain: Iterable[str]) -> None:
        for name in plain:
            self.stored.use(name)
        if not self.quantized:
            raise StartError(
                f"{self.stored.checkpoint.folder}: quantization_config is that of {self.name}, but no matrix is "
                "quantized; remove it to serve the model in 16 bits, or with --quantize to quantize it at load"
            )
        elsewhere = (name.rpartition(".")[0] for name in self.stored.checkpoint.left_out)
        self._format.check([*self.plain, *self.quantized, *elsewhere])
        for name in self.stored.unused():
            if not _NOT_NEEDED.fullmatch(name) and not name.startswith(_HEAD):
                self._check_zero(name)

    def _check_zero(self, name: str) -> None:
        """Some tools write a bias of zeros where a model has none."""
        entry = self.stored.entry(name)
        if name.endswith(".bias") and not bool(self.stored.read(name).any()):
            return
        raise StartError(
            f"{entry.file}: tensor {name} is of no use to {self.name} as it is read here; "
            "the model may need what is not supported"
        )


def last_parts(name: str) -> str:
    """The name of a module without the number of its layer, so that all layers have one."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _shown(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
