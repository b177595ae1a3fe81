"""Resolves `--cpu-activations` and `--gpu-activations` for a device and a model."""

import torch
from penstock_kernels.native.quantized import prefers_rounded

from penstock_server.base.config import ServerConfig
from penstock_server.base.errors import StartError
from penstock_server.files.model_folder import ModelFolder
from penstock_server.network.quantization.rounded_inputs import NOT_ROUNDED, OnCpu, OnGpu, Rounding

_BITS = {"float": 0, "int16": 16, "int8": 8}
# Floats of 8 bits came to the matrix units with it.
_FLOAT8_CAPABILITY = (8, 9)


def rounding_of(config: ServerConfig, device: torch.device, dtype: torch.dtype) -> Rounding:
    """How rows are rounded before quantized matrices; auto: to int16, where that is faster and no coarser than they."""
    if device.type == "cuda":
        return OnGpu() if config.gpu_activations == "8bit" else NOT_ROUNDED
    if config.cpu_activations != "auto":
        bits = _BITS[config.cpu_activations]
        return OnCpu(bits, is_asked=True) if bits else NOT_ROUNDED
    return OnCpu(16) if dtype == torch.bfloat16 and prefers_rounded() else NOT_ROUNDED


def check_activations(config: ServerConfig, folder: ModelFolder, device: torch.device) -> None:
    """Before any weight is read, raise StartError where nothing could be rounded. Whether the format allows it, the
    loader says.
    """
    if config.cpu_activations not in ("auto", "float"):
        _check(f"--cpu-activations {config.cpu_activations}", "cpu", folder, device)
    if config.gpu_activations == "8bit":
        _check("--gpu-activations 8bit", "cuda", folder, device)
        _check_capability(device)


def _check(flag: str, wanted: str, folder: ModelFolder, device: torch.device) -> None:
    if device.type != wanted:
        kind = "a CPU" if wanted == "cpu" else "a GPU"
        raise StartError(f"{flag} is for {kind}, this device is {device.type}; leave it out")
    if folder.quantization is None and folder.at_load is None:
        raise StartError(
            f"{flag} is for quantized weights, and this model has none; add --quantize int8 or leave it out"
        )


def _check_capability(device: torch.device) -> None:
    found = torch.cuda.get_device_capability(device)
    if found < _FLOAT8_CAPABILITY:
        raise StartError(
            "--gpu-activations 8bit needs a GPU of compute capability 8.9 or more, "
            f"this one has {found[0]}.{found[1]}; leave it out"
        )
