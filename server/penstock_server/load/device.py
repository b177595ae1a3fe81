"""The device of a shard and the type of its weights: as asked for, or chosen from machine and model."""

import torch

from penstock_server.base.config import ServerConfig
from penstock_server.base.errors import StartError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(config: ServerConfig) -> torch.device:
    """The device asked for; every rank on a GPU has one of its own."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise StartError("--device cuda: no CUDA device is usable here; check the driver or use --device cpu")
    rank, count = config.group.rank, torch.cuda.device_count()
    number = config.group.first_gpu + config.group.local_rank
    if number >= count:
        raise StartError(
            f"--device cuda: shard {rank} needs a GPU of its own, number {number}, and {count} are visible; "
            "lower --num-shard or --num-replicas"
        )
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device


def choose_dtype(wanted: str, of_model: str, device: torch.device) -> torch.dtype:
    """The type of weights and activations; auto: float32 on a CPU, that of the model on a GPU."""
    if wanted == "auto":
        wanted = "float32" if device.type == "cpu" else of_model
    if wanted not in _DTYPES:
        raise StartError(f"config.json: dtype {wanted!r} is not supported; choose one with --dtype")
    if device.type == "cpu" and wanted == "float16":
        raise StartError("--dtype float16 cannot be computed on a cpu; use --dtype bfloat16 or float32")
    return _DTYPES[wanted]


def name_of(dtype: torch.dtype) -> str:
    """The name of a type, without the library's."""
    return str(dtype).removeprefix("torch.")
