"""Checks `--cpu-activations` against the device and the model, before any weight is read."""

import torch

from penstock_server.base.config import ServerConfig
from penstock_server.base.errors import StartError
from penstock_server.files.model_folder import ModelFolder


def check_activations(config: ServerConfig, folder: ModelFolder, device: torch.device) -> None:
    """Raise StartError where nothing could be rounded to int8. Whether the format allows it, the loader says."""
    if config.cpu_activations == "float":
        return
    if device.type != "cpu":
        raise StartError("--cpu-activations int8 is for a CPU, this device is cuda; leave it out")
    if folder.quantization is None and folder.at_load is None:
        raise StartError(
            "--cpu-activations int8 is for quantized weights, and this model has none; add --quantize int8 or leave "
            "it out"
        )
