"""Scales for an 8-bit KV cache from a checkpoint: what keys and values of each layer are divided by.

Without them everything is stored as it is, which float8_e4m3fn holds up to 448.
"""

import math
from collections.abc import Iterable

from safetensors import safe_open

from penstock_server.architectures.spec import ModelSpec
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.network.kv_cache import KvScale

# The names of a scale: beside the layer's key or value projection, or below it.
_NAMES = ("{parent}.{kind}_scale", "{projection}.{kind}_scale")


def read_scales(checkpoint: Checkpoint, spec: ModelSpec, numbers: Iterable[int]) -> tuple[KvScale, ...]:
    """The scales of each of these layers that attends; 1 where the checkpoint has none."""
    attending = (number for number in numbers if spec.layers[number].has_cache)
    prefixes = (spec.names.layer.format(number) for number in attending)
    return tuple(
        KvScale(
            _scale(checkpoint, prefix + spec.names.key, "k"),
            _scale(checkpoint, prefix + spec.names.value, "v"),
        )
        for prefix in prefixes
    )


def _scale(checkpoint: Checkpoint, projection: str, kind: str) -> float:
    parent = projection.rpartition(".")[0]
    for pattern in _NAMES:
        name = pattern.format(parent=parent, projection=projection, kind=kind)
        if checkpoint.has(name):
            return _read(checkpoint, name)
    return 1.0


def _read(checkpoint: Checkpoint, name: str) -> float:
    entry = checkpoint.require_name(name)
    shape = () if entry.shape == () else (1,)
    checkpoint.require(name, shape)
    with safe_open(entry.file, framework="pt") as opened:
        scale = float(opened.get_tensor(entry.name))
    if not (math.isfinite(scale) and scale > 0):
        raise StartError(f"{entry.file}: tensor {name} is {scale:g}; a scale must be above 0 and finite")
    return scale
