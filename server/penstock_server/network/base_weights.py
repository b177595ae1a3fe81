"""The matrices of the base model as numbers, whole on every rank, for adapters whose result depends on them."""

import torch
from safetensors import SafetensorError

from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.network.quantization.quantization import Quantization
from penstock_server.network.tensor_files import open_tensors


class BaseWeights:
    """Reads them from the files of the model; what is quantized is what its codes mean."""

    def __init__(self, checkpoint: Checkpoint | None, quantization: Quantization | None = None) -> None:
        self._checkpoint = checkpoint
        self._quantization = quantization

    def read(self, module: str, shape: tuple[int, int], inputs_first: bool = False) -> torch.Tensor:
        """The matrix of a module, outputs first. Raises StartError where it is not there with this shape."""
        if self._checkpoint is None:
            raise StartError("they are noise here (--load-format dummy)")
        found = None if self._quantization is None else self._quantization.numbers(module)
        if found is not None:
            return found
        stored = shape[::-1] if inputs_first else shape
        entry = self._checkpoint.require(f"{module}.weight", stored)
        try:
            with open_tensors(self._checkpoint, entry.file) as opened:
                weight: torch.Tensor = opened.get_tensor(entry.name)
        except (SafetensorError, OSError) as error:
            raise StartError(f"{entry.file}: {error}") from None
        return weight.T if inputs_first else weight
