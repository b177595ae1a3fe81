"""Reads a model of our own decoder: its weights, how they are quantized, and the scales of its cache."""

import logging

import torch

from penstock_server.base.config import ServerConfig
from penstock_server.files.model_folder import ModelFolder
from penstock_server.load.activations import rounding_of
from penstock_server.load.quantize_cache import cache_entry
from penstock_server.network.decoder import Decoder
from penstock_server.network.kv_cache import KvScale
from penstock_server.network.kv_scales import read_scales
from penstock_server.network.layers.placement import Placement
from penstock_server.network.quantization.at_load import QuantizationAtLoad
from penstock_server.network.quantization.quantization import Quantization, StoredQuantization
from penstock_server.network.stage import Stage
from penstock_server.network.weights import fill_with_noise, load_weights

logger = logging.getLogger(__name__)


def read_decoder(
    folder: ModelFolder,
    placement: Placement,
    device: torch.device,
    max_sequence_len: int | None,
    quantization: Quantization | None,
) -> Decoder:
    """The decoder that the folder describes, with its weights."""
    assert folder.spec is not None, "a row describes the model"
    logger.info("%s is computed by our own decoder", folder.model_type)
    decoder = Decoder(folder.spec, placement, device, max_sequence_len)
    if folder.checkpoint is None:
        fill_with_noise(decoder, device)
    else:
        load_weights(decoder, folder.checkpoint, device, quantization)
    return decoder


def quantization_of(
    config: ServerConfig, folder: ModelFolder, device: torch.device, placement: Placement
) -> Quantization | None:
    """How weights are quantized, if they are, and are read by the ranks of a group."""
    if folder.checkpoint is None:
        return None
    rounding = rounding_of(config, device, placement.dtype)
    if folder.quantization is not None:
        return StoredQuantization(folder.quantization, folder.checkpoint, rounding)
    if folder.at_load is None:
        return None
    entry = cache_entry(config.quantize_cache, folder.at_load, folder.checkpoint, device, placement)
    return QuantizationAtLoad(folder.at_load, folder.checkpoint, device, rounding, entry)


def scales_of(
    folder: ModelFolder, stage: Stage, dtype: torch.dtype, cache_dtype: torch.dtype
) -> tuple[KvScale, ...]:
    """The scales of the checkpoint for a stage, where the type of the cache is smaller than that of the model."""
    if cache_dtype == dtype or folder.spec is None or folder.checkpoint is None:
        return ()
    return read_scales(folder.checkpoint, folder.spec, stage.layers(folder.spec.num_layers))
