"""Chooses the attention backend and the type of the cache, and checks them against the model and the device."""

import torch
from penstock_kernels.backends import (
    Backend,
    Demand,
    LatentDemand,
    Unsupported,
    choose,
    choose_for_latents,
    reference_backend,
)

from penstock_server.architectures.spec import LatentSpec, ModelSpec
from penstock_server.base.config import ServerConfig
from penstock_server.base.errors import StartError
from penstock_server.network.distributed import Group
from penstock_server.network.layers.heads import share_heads

_FP8 = torch.float8_e4m3fn
# Older GPUs have no 8-bit floats.
_FP8_CAPABILITY = (8, 9)


def choose_cache_dtype(config: ServerConfig, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Type of the KV cache of a model of `dtype`."""
    if config.cache.dtype == "auto":
        return dtype
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        needed = ".".join(map(str, _FP8_CAPABILITY))
        raise StartError(
            f"--kv-cache-dtype {config.cache.dtype}: this GPU has no 8-bit floats; compute capability {needed} has"
        )
    return _FP8


def choose_backend(
    config: ServerConfig,
    spec: ModelSpec | None,
    group: Group,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    device: torch.device,
) -> Backend:
    """The backend for this rank's heads; raises StartError with the reason, before any weight is read."""
    name = config.attention_backend
    if spec is None:
        return _for_any_model(name, device)
    if spec.recurrent is not None and config.batch_invariant:
        raise StartError(
            "--batch-invariant: the products of recurrent layers depend on the number of rows; leave it out"
        )
    if cache_dtype != dtype and not any(layer.has_cache for layer in spec.layers):
        raise StartError(
            f"--kv-cache-dtype {config.cache.dtype}: no layer of this model keeps keys and values; use auto"
        )
    if spec.latent is not None:
        return _for_latents(config, spec.latent, dtype, cache_dtype, device)
    chosen = []
    for total in dict.fromkeys(spec.kv_heads):
        heads = share_heads(group, spec.num_heads, total.number)
        demand = Demand(
            device,
            dtype,
            cache_dtype,
            heads.num_heads,
            heads.num_kv_heads,
            total.dim,
            has_soft_cap=spec.attention_soft_cap is not None,
            has_sinks=spec.sinks,
            has_slopes=spec.slopes is not None,
            has_chunks=any(layer.chunk is not None for layer in spec.layers),
            batch_invariant=config.batch_invariant,
        )
        try:
            chosen.append(choose(name, demand))
        except Unsupported as reason:
            raise StartError(f"--attention-backend {name}: {reason}") from None
    # With `auto`, take the backend that all layers can have.
    return next((backend for backend in chosen if not backend.captures_prompts), chosen[0])


def _for_latents(
    config: ServerConfig,
    latent: LatentSpec,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    device: torch.device,
) -> Backend:
    """Attention over latents is by Triton on a GPU, in C on a CPU, and everywhere by the reference."""
    name = config.attention_backend
    if name not in ("auto", "triton", "native", "reference"):
        raise StartError(
            f"--attention-backend {name}: this model attends to latents, which only triton, native and reference "
            "compute; use auto or one of these"
        )
    if cache_dtype != dtype:
        raise StartError(
            f"--kv-cache-dtype {config.cache.dtype}: latents are kept in the model's type; use auto"
        )
    if config.batch_invariant:
        raise StartError(
            "--batch-invariant: the products of attention over latents depend on the number of rows; leave it out"
        )
    try:
        return choose_for_latents(
            name, LatentDemand(device, dtype, latent.rank, latent.rope_dim, latent.nope_dim)
        )
    except Unsupported as reason:
        raise StartError(f"--attention-backend {name}: {reason}") from None


def _for_any_model(name: str, device: torch.device) -> Backend:
    """For a model of transformers: what it needs of attention is known to its own code only."""
    if name == "auto":
        return Backend("auto")
    if name == "reference":
        return reference_backend(device)
    raise StartError(
        f"--attention-backend {name}: this model is computed by the code of transformers, whose needs are not known "
        "ahead; use auto or reference"
    )
