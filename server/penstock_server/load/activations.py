"""What `--cpu-activations` means for a device and a model."""

import torch
from penstock_kernels.native.quantized import prefers_rounded

from penstock_server.base.config import ServerConfig
from penstock_server.base.errors import StartError
from penstock_server.files.model_folder import ModelFolder
from penstock_server.network.quantization.quantization import Rounding

_BITS = {"float": 0, "int16": 16, "int8": 8}


def rounding_of(config: ServerConfig, device: torch.device, dtype: torch.dtype) -> Rounding:
    """How rows are rounded before quantized matrices; auto: to int16, where that is faster and no coarser than they."""
    if config.cpu_activations != "auto":
        bits = _BITS[config.cpu_activations]
        return Rounding(bits, is_asked=bits > 0)
    is_coarser = device.type == "cpu" and dtype == torch.bfloat16
    return Rounding(16 if is_coarser and prefers_rounded() else 0)


def check_activations(config: ServerConfig, folder: ModelFolder, device: torch.device) -> None:
    """Before any weight is read, raise StartError where nothing could be rounded. Whether the format allows it, the
    loader says.
    """
    flag = f"--cpu-activations {config.cpu_activations}"
    if config.cpu_activations in ("auto", "float"):
        return
    if device.type != "cpu":
        raise StartError(f"{flag} is for a CPU, this device is cuda; leave it out")
    if folder.quantization is None and folder.at_load is None:
        raise StartError(
            f"{flag} is for quantized weights, and this model has none; add --quantize int8 or leave it out"
        )
