"""Loads a head of EAGLE for a model: its weights, the tokens that it knows, the format of its plane of the cache."""

import torch
from safetensors import SafetensorError

from penstock_server.base.config import ServerConfig
from penstock_server.base.errors import StartError
from penstock_server.files.eagle_folder import EagleFolder
from penstock_server.load.allocation import allocating
from penstock_server.load.attention_backend import choose_backend, choose_cache_dtype
from penstock_server.load.draft_model import DraftModel, sharing
from penstock_server.network.decoder import Decoder
from penstock_server.network.eagle import EagleHead, known_tokens
from penstock_server.network.kv_cache import CacheFormat
from penstock_server.network.layers.placement import Placement
from penstock_server.network.model import Model
from penstock_server.network.tensor_files import open_tensors
from penstock_server.network.weights import load_weights


def load_eagle(
    config: ServerConfig, folder: EagleFolder, target: Model, placement: Placement, device: torch.device
) -> DraftModel:
    """Build and fill it, in the type of the model; raises StartError, which names the flag."""
    assert isinstance(target, Decoder), "checked when the folder was opened"
    try:
        return _load(config, folder, target, placement, device)
    except StartError as error:
        raise StartError(f"--draft-model: {error}") from None


def _load(
    config: ServerConfig, folder: EagleFolder, target: Decoder, placement: Placement, device: torch.device
) -> DraftModel:
    served_len = config.cache.max_sequence_len or target.facts.max_sequence_len
    token_ids = _token_ids(folder, target.facts.vocab_size)
    token_ids = None if token_ids is None else token_ids.to(device)

    def build(placed: Placement) -> EagleHead:
        return EagleHead(folder, token_ids, target, placed, device, served_len)

    placement = sharing(build, placement, device)
    head = build(placement)
    allocating("its weights", load_weights, head, folder.checkpoint, device)
    cache_dtype = choose_cache_dtype(config, placement.dtype, device)
    backend = choose_backend(config, folder.spec, placement.group, placement.dtype, cache_dtype, device)
    return DraftModel(head, CacheFormat(cache_dtype, (), backend.attend), backend)


def _token_ids(folder: EagleFolder, vocab_size: int) -> torch.Tensor | None:
    """The tokens that it knows, each once; None: all of the model's."""
    if folder.draft_vocab_size is None:
        return None
    entry = folder.checkpoint.require_name("d2t")
    if entry.dtype != "I64" or entry.shape != (folder.draft_vocab_size,):
        raise StartError(
            f"{entry.file}: d2t is {entry.dtype} {list(entry.shape)}; expected I64 [{folder.draft_vocab_size}]"
        )
    try:
        with open_tensors(folder.checkpoint, entry.file) as opened:
            token_ids = known_tokens(opened.get_tensor(entry.name))
    except (SafetensorError, OSError) as error:
        raise StartError(f"{entry.file}: {error}; download it again") from None
    low, high, count = int(token_ids.min()), int(token_ids.max()), len(set(token_ids.tolist()))
    if low < 0 or high >= vocab_size or count < len(token_ids):
        raise StartError(
            f"{entry.file}: d2t names tokens {low} to {high}, {count} of {len(token_ids)} differ, and the model knows "
            f"{vocab_size}; use a head that was trained for this model"
        )
    return token_ids
