"""The choice of an attention backend by name. One that cannot do what a model needs is refused with the reason."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from penstock_kernels import reference
from penstock_kernels.adapters import flash_attention_3 as fa3
from penstock_kernels.adapters import measured
from penstock_kernels.adapters.cudnn import by_cudnn, cudnn
from penstock_kernels.adapters.gathered import GatheredPrompts
from penstock_kernels.adapters.varlen import varlen
from penstock_kernels.base.attention_spans import MAX_KERNEL_RANK, Attend, AttendLatents
from penstock_kernels.base.devices import runs_kernels
from penstock_kernels.native import attention as native
from penstock_kernels.native import latent_attention as native_latents
from penstock_kernels.native.library import library
from penstock_kernels.ops.latent_attention import own_latent_attention
from penstock_kernels.ops.paged_attention import own_attention

BackendName = Literal["auto", "triton", "native", "reference", "flashinfer", "varlen", "fa3", "cudnn"]
NAMES: tuple[str, ...] = get_args(BackendName)
_VARLEN = "torch.nn.attention.varlen"


class Unsupported(ValueError):
    """Why a backend cannot be used, in one line."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The properties of a model's attention that a backend must support."""

    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_soft_cap: bool = False
    has_sinks: bool = False
    has_slopes: bool = False
    has_chunks: bool = False
    batch_invariant: bool = False


@dataclass(frozen=True, slots=True)
class Backend:
    """A choice. `capturable`: a step of `DecodeSpans` needs nothing from the host, so that a graph can hold it.
    `captures_prompts`: nor does one with prompts, which the same code attends to in a graph and out of one."""

    name: str
    attend: Attend = own_attention
    capturable: bool = True
    captures_prompts: bool = False
    # Attention for a model that attends to latents.
    attend_latents: AttendLatents = own_latent_attention


@dataclass(frozen=True, slots=True)
class LatentDemand:
    """The properties of attention over latents that a backend must support; the cache has the type of the model."""

    device: torch.device
    dtype: torch.dtype
    rank: int
    rope_dim: int
    nope_dim: int


def choose_for_latents(name: str, demand: LatentDemand) -> Backend:
    """The backend for attention over latents: `auto`, `triton`, `native` or `reference`. Raises Unsupported."""
    if name == "auto":
        own = "triton" if runs_kernels(demand.device) else "native"
        name = own if _LATENT_REFUSALS[own](demand) is None else "reference"
    if name == "reference":
        return reference_backend(demand.device)
    reason = _LATENT_REFUSALS[name](demand)
    if reason is not None:
        raise Unsupported(reason)
    return Backend(name, captures_prompts=name == "triton")


def choose(name: str, demand: Demand) -> Backend:
    """Raises Unsupported. `auto` is our own implementation for the device, but where another was measured to be faster
    and can be used."""
    if name == "auto":
        faster = _faster_name(demand)
        if faster is not None:
            return _MAKERS[faster](demand)
        own = _own_name(demand)
        if own == "reference" and runs_kernels(demand.device):
            return reference_backend(demand.device)
        return Backend(own, captures_prompts=own != "reference")
    reason = _REFUSALS[name](demand)
    if reason is not None:
        raise Unsupported(reason)
    return _MAKERS[name](demand)


def _faster_name(demand: Demand) -> str | None:
    """The library that `auto` takes in the place of our own."""
    if not measured.FASTER or not runs_kernels(demand.device):
        return None
    tiles = importlib.import_module("penstock_kernels.gpu.tiles")
    name = measured.FASTER.get(tiles.processor(demand.device).name, {}).get(demand.head_dim)
    return name if name is not None and _REFUSALS[name](demand) is None else None


def _own_name(demand: Demand) -> str:
    """The implementation that `own_attention` takes."""
    if runs_kernels(demand.device):
        return "triton" if _refuse_triton(demand) is None else "reference"
    return "native" if _refuse_native(demand) is None else "reference"


def _unknown_to_others(demand: Demand) -> str | None:
    """Why only our own kernels can compute it; None: others can, too."""
    if demand.has_chunks:
        return "it knows no chunks of positions, which this model needs"
    if demand.has_slopes:
        return "it knows no slopes of scores (ALiBi), which this model needs"
    return None


def _refuse_triton(demand: Demand) -> str | None:
    if not runs_kernels(demand.device):
        return f"its kernels need a CUDA device, this one is {demand.device.type}"
    return _not_importable("triton") or _refuse_large_heads(demand)


def _refuse_large_heads(demand: Demand) -> str | None:
    tiles = importlib.import_module("penstock_kernels.gpu.tiles")
    if demand.head_dim <= tiles.SMALL_HEADS:
        return None
    shared_bytes = tiles.processor(demand.device).shared_bytes
    if tiles.takes_heads(demand.head_dim, demand.dtype.itemsize, shared_bytes):
        return None
    return (
        f"this device has {shared_bytes} bytes of shared memory, too few for heads of {demand.head_dim} numbers in "
        f"{_name(demand.dtype)}"
    )


def _refuse_native(demand: Demand) -> str | None:
    if demand.device.type != "cpu":
        return f"it is C for the CPU, this device is {demand.device.type}"
    if library() is None:
        return "it was not compiled when penstock-kernels was installed"
    group = demand.num_heads // demand.num_kv_heads
    if native.can_attend(demand.dtype, demand.cache_dtype, demand.head_dim, group):
        return None
    return f"it cannot do {_kind(demand)}"


def _refuse_triton_latents(demand: LatentDemand) -> str | None:
    if not runs_kernels(demand.device):
        return f"its kernels need a CUDA device, this one is {demand.device.type}"
    if demand.rank > MAX_KERNEL_RANK:
        return f"its latents have at most {MAX_KERNEL_RANK} numbers, this model's {demand.rank}"
    return _not_importable("triton")


def _refuse_native_latents(demand: LatentDemand) -> str | None:
    if demand.device.type != "cpu":
        return f"it is C for the CPU, this device is {demand.device.type}"
    if library() is None:
        return "it was not compiled when penstock-kernels was installed"
    if native_latents.can_attend(demand.dtype, demand.rank, demand.rope_dim, demand.nope_dim):
        return None
    return (
        f"it cannot do latents of {demand.rank} and {demand.rope_dim} numbers with queries of {demand.nope_dim} "
        f"in {_name(demand.dtype)}"
    )


def _refuse_reference(demand: Demand) -> str | None:
    return None


def _refuse_flashinfer(demand: Demand) -> str | None:
    heads = (64, 128, 256)
    if demand.head_dim not in heads:
        return f"its heads have {', '.join(map(str, heads))} numbers, this model's {demand.head_dim}"
    return _refuse_foreign(demand) or _not_importable("flashinfer")


def _refuse_varlen(demand: Demand) -> str | None:
    if demand.head_dim % 8 or demand.head_dim > 256:
        return f"its heads have at most 256 numbers, a multiple of 8, this model's {demand.head_dim}"
    if demand.has_soft_cap:
        return "it has no soft cap of scores, which this model needs"
    if demand.cache_dtype != demand.dtype:
        return f"it reads no cache of {_name(demand.cache_dtype)}"
    return _refuse_foreign(demand) or _not_importable(_VARLEN) or _refuse_old_varlen()


def _refuse_fa3(demand: Demand) -> str | None:
    if demand.head_dim % 8 or demand.head_dim > 256:
        return f"its heads have at most 256 numbers, a multiple of 8, this model's {demand.head_dim}"
    if demand.dtype != torch.bfloat16:
        return f"it computes bfloat16, not {_name(demand.dtype)}"
    if demand.cache_dtype != demand.dtype:
        return f"it reads no cache of {_name(demand.cache_dtype)}"
    return _refuse_foreign(demand) or _not_importable(fa3.MODULE) or _refuse_other_than_hopper(demand)


def _refuse_cudnn(demand: Demand) -> str | None:
    if demand.head_dim % 8 or demand.head_dim > 128:
        return f"its heads have at most 128 numbers, a multiple of 8, this model's {demand.head_dim}"
    if demand.has_soft_cap:
        return "it has no soft cap of scores, which this model needs"
    if demand.cache_dtype != demand.dtype:
        return f"it reads no cache of {_name(demand.cache_dtype)}"
    return _refuse_foreign(demand)


def _refuse_other_than_hopper(demand: Demand) -> str | None:
    major, minor = torch.cuda.get_device_capability(demand.device)
    if major == 9:
        return None
    return f"it needs compute capability 9.0 (H100, H200), this device has {major}.{minor}"


def _refuse_old_varlen() -> str | None:
    library: Any = importlib.import_module(_VARLEN)
    missing = {"scale", "window_size", "enable_gqa"} - set(inspect.signature(library.varlen_attn).parameters)
    return f"that of this PyTorch has no {min(missing)}; use a newer one" if missing else None


def _refuse_foreign(demand: Demand) -> str | None:
    """Why the libraries of others cannot compute it; None: they can."""
    if demand.device.type != "cuda":
        return f"it needs a CUDA device, this one is {demand.device.type}"
    if demand.dtype not in (torch.float16, torch.bfloat16):
        return f"it computes float16 and bfloat16, not {_name(demand.dtype)}"
    unknown = _unknown_to_others(demand)
    if unknown is not None:
        return unknown
    if demand.has_sinks:
        return "it has no attention sinks, which this model needs"
    if demand.batch_invariant:
        return "its sums depend on what shares the batch; leave out --batch-invariant"
    return None


def _not_importable(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except Exception as error:  # any error of an import means that the library cannot be used
        return f"{module} cannot be imported here ({str(error).strip().splitlines()[0]})"
    return None


def _make_triton(demand: Demand) -> Backend:
    from penstock_kernels.gpu import attention

    return Backend("triton", attention.paged_attention, captures_prompts=True)


def _make_native(demand: Demand) -> Backend:
    return Backend("native", native.paged_attention, captures_prompts=True)


def reference_backend(device: torch.device) -> Backend:
    """The reference, which takes everything. It reads lengths on the host, which a captured step cannot."""
    return Backend(
        "reference",
        reference.paged_attention,
        capturable=device.type == "cpu",
        attend_latents=reference.latent_attention,
    )


def _make_flashinfer(demand: Demand) -> Backend:
    from penstock_kernels.adapters.flashinfer import FlashInferAttention

    library: Any = importlib.import_module("flashinfer")
    # Its plans are made on the host, from lengths that a captured step has on the device only.
    return Backend("flashinfer", FlashInferAttention(library, demand.device), capturable=False)


def _make_varlen(demand: Demand) -> Backend:
    library: Any = importlib.import_module(_VARLEN)
    return Backend("varlen", GatheredPrompts(varlen(library.varlen_attn)))


def _make_fa3(demand: Demand) -> Backend:
    library: Any = importlib.import_module(fa3.MODULE)
    return Backend("fa3", GatheredPrompts(fa3.flash_attention_3(library.flash_attn_varlen_func)))


def _kind(demand: Demand) -> str:
    heads = f"{demand.num_heads} heads of {demand.head_dim} over {demand.num_kv_heads}"
    return f"{heads} in {_name(demand.dtype)} with a cache of {_name(demand.cache_dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_REFUSALS: dict[str, Callable[[Demand], str | None]] = {
    "triton": _refuse_triton,
    "native": _refuse_native,
    "reference": _refuse_reference,
    "flashinfer": _refuse_flashinfer,
    "varlen": _refuse_varlen,
    "fa3": _refuse_fa3,
    "cudnn": _refuse_cudnn,
}
_LATENT_REFUSALS: dict[str, Callable[[LatentDemand], str | None]] = {
    "triton": _refuse_triton_latents,
    "native": _refuse_native_latents,
}
_MAKERS: dict[str, Callable[[Demand], Backend]] = {
    "triton": _make_triton,
    "native": _make_native,
    "reference": lambda demand: reference_backend(demand.device),
    "flashinfer": _make_flashinfer,
    "varlen": _make_varlen,
    "fa3": _make_fa3,
    "cudnn": lambda demand: Backend("cudnn", GatheredPrompts(cudnn(by_cudnn))),
}
