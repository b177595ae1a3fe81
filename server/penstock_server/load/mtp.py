"""Loads the layer of multi-token prediction of a checkpoint, and the format of its plane of the cache."""

import torch

from penstock_server.base.config import ServerConfig
from penstock_server.base.errors import StartError
from penstock_server.files.mtp_folder import MtpFolder
from penstock_server.load.activations import rounding_of
from penstock_server.load.allocation import allocating
from penstock_server.load.attention_backend import choose_backend, choose_cache_dtype
from penstock_server.load.draft_model import DraftModel
from penstock_server.network.decoder import Decoder
from penstock_server.network.kv_cache import CacheFormat
from penstock_server.network.layers.placement import Placement
from penstock_server.network.model import Model
from penstock_server.network.mtp import MtpHead
from penstock_server.network.quantization.quantization import StoredQuantization
from penstock_server.network.weights import load_weights


def load_mtp(
    config: ServerConfig, folder: MtpFolder, target: Model, placement: Placement, device: torch.device
) -> DraftModel:
    """Build and fill it, in the type of the model, and quantized as the checkpoint is; raises StartError."""
    assert isinstance(target, Decoder), "checked when the folder was opened"
    served_len = config.cache.max_sequence_len or target.facts.max_sequence_len
    quantization = None
    if folder.quantization is not None:
        rounding = rounding_of(config, device, placement.dtype)
        quantization = StoredQuantization(folder.quantization, folder.checkpoint, rounding)
    head = MtpHead(folder.spec, folder.names, target, placement, device, served_len)
    try:
        allocating("its weights", load_weights, head, folder.checkpoint, device, quantization)
    except StartError as error:
        raise StartError(f"--speculation mtp: {error}") from None
    cache_dtype = choose_cache_dtype(config, placement.dtype, device)
    backend = choose_backend(config, folder.spec, placement.group, placement.dtype, cache_dtype, device)
    return DraftModel(head, CacheFormat(cache_dtype, (), backend.attend), backend)
