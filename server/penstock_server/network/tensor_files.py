"""Opens the files that weights are in, as mapped pages: safetensors by their library, GGUF here."""

import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.gguf.tensors import GgufEntry

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class TensorFile(Protocol):
    """An open file."""

    def get_tensor(self, name: str) -> Any:
        """A tensor of it, as mapped pages where no number has to change."""
        ...


def open_tensors(checkpoint: Checkpoint, file: Path) -> AbstractContextManager[TensorFile]:
    """One of the files of a checkpoint; raises SafetensorError or OSError."""
    if any(isinstance(entry, GgufEntry) and entry.file == file for entry in checkpoint.entries.values()):
        return nullcontext(_GgufFile(checkpoint, file))
    found: AbstractContextManager[TensorFile] = safe_open(file, framework="pt")
    return found


class _GgufFile:
    """Tensors of numbers in an order and with values as other checkpoints have them; blocks as bytes of rows."""

    def __init__(self, checkpoint: Checkpoint, file: Path) -> None:
        self._checkpoint = checkpoint
        # Pages of the file, which are copied where somebody writes, as safetensors has them.
        self._bytes = torch.from_file(str(file), shared=False, size=file.stat().st_size, dtype=torch.uint8)

    def get_tensor(self, name: str) -> torch.Tensor:
        """See `TensorFile`."""
        entry = self._checkpoint.entries[name]
        assert isinstance(entry, GgufEntry), "entries of such a file are"
        part = self._bytes[entry.begin : entry.end]
        if entry.dtype not in _DTYPES:
            return part.view(math.prod(entry.shape[:-1]), entry.row_bytes)
        numbers = part.view(_DTYPES[entry.dtype]).view(entry.shape)
        if entry.paired_heads:
            numbers = numbers[row_order(entry)]
        return numbers - entry.excess if entry.excess else numbers


def row_order(entry: GgufEntry) -> torch.Tensor:
    """Which row of the file each row of a head's halves is, where the file has neighbouring pairs."""
    rows = torch.arange(entry.shape[0])
    if not entry.paired_heads:
        return rows
    return rows.view(entry.paired_heads, -1, 2).transpose(1, 2).flatten()
