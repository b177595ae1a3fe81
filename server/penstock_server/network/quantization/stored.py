"""Access to the tensors of a checkpoint for the readers of formats: checked, as mapped pages, and counted."""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch
from penstock_kernels import all_finite
from safetensors import SafetensorError, safe_open

from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint, Entry
from penstock_server.network.tensor_files import TensorFile, open_tensors

FLOATS = ("F32", "F16", "BF16")
FLOAT8 = "F8_E4M3"
# Powers of two; some tools store their bytes as integers.
POWERS = ("F8_E8M0", "U8")

Shape = tuple[int, ...]


class Wanted(NamedTuple):
    """A tensor that a matrix needs: which types and shapes it may have."""

    name: str
    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...]
    # It is checked where it is there, and may be missing.
    optional: bool = False


class Stored:
    """The tensors of a checkpoint. Files stay open until the end of the `with`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        # Names as the files have them.
        self.used: set[str] = set()
        self._stack = ExitStack()
        self._opened: dict[Path, TensorFile] = {}
        self._metadata: dict[Path, dict[str, str]] = {}

    def __enter__(self) -> "Stored":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.clear()
        self._stack.close()

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return self.checkpoint.has(name)

    def is_in_16_bits(self, name: str) -> bool:
        """Whether there is such a tensor, of floats of at least 16 bits."""
        return self.has(name) and self.entry(name).dtype in FLOATS

    def entry(self, name: str) -> Entry:
        """The entry of a tensor that must be there."""
        return self.checkpoint.require_name(name)

    def use(self, name: str) -> None:
        """Note that a tensor is needed, or known and of no use here."""
        if self.has(name):
            self.used.add(self.entry(name).name)

    def check(self, wanted: Wanted) -> None:
        """Raise StartError unless the tensor is as it must be."""
        if wanted.optional and not self.has(wanted.name):
            return
        entry = self.entry(wanted.name)
        self.used.add(entry.name)
        if entry.dtype not in wanted.dtypes:
            raise StartError(
                f"{entry.file}: tensor {entry.name} is {entry.dtype}; expected {' or '.join(wanted.dtypes)}"
            )
        if entry.shape not in wanted.shapes:
            expected = " or ".join(str(list(shape)) for shape in wanted.shapes)
            raise StartError(
                f"{entry.file}: tensor {entry.name} has shape {list(entry.shape)}; expected {expected}"
            )

    def read(self, name: str) -> torch.Tensor:
        """A tensor as mapped pages: what is not used is not read."""
        entry = self.entry(name)
        try:
            if entry.file not in self._opened:
                self._opened[entry.file] = self._stack.enter_context(
                    open_tensors(self.checkpoint, entry.file)
                )
            found: torch.Tensor = self._opened[entry.file].get_tensor(entry.name)
        except (SafetensorError, OSError) as error:
            raise StartError(f"{entry.file}: {error}; download it again") from None
        # The header of a file may have any length.
        return found if found.data_ptr() % found.element_size() == 0 else found.clone()

    def metadata(self, name: str) -> dict[str, str]:
        """The metadata in the header of the file of a tensor."""
        file = self.entry(name).file
        if file not in self._metadata:
            try:
                with safe_open(file, framework="pt") as opened:
                    self._metadata[file] = opened.metadata() or {}
            except (SafetensorError, OSError) as error:
                raise StartError(f"{file}: {error}; download it again") from None
        return self._metadata[file]

    def read_scales(self, name: str) -> torch.Tensor:
        """A tensor of floats, all of which must be finite."""
        scales = self.read(name)
        if not all_finite(scales if scales.dtype.itemsize > 1 else scales.float()):
            raise self.not_finite(name)
        return scales

    def not_finite(self, name: str) -> StartError:
        """The error for a tensor that holds what is no number."""
        entry = self.entry(name)
        return StartError(
            f"{entry.file}: tensor {entry.name} holds numbers that are not finite; download it again"
        )

    def unused(self) -> list[str]:
        """Names of tensors that nobody needed."""
        return [name for name, entry in self.checkpoint.entries.items() if entry.name not in self.used]
