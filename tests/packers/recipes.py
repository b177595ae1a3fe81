"""Recipes: a library, what it is asked for, and the settings that it writes into config.json for that.

Each library is imported by its recipe, so that one that cannot be had costs only its own.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import torch

Tensors = dict[str, torch.Tensor]


class Packed(NamedTuple):
    """A matrix as a checkpoint has it."""

    tensors: Tensors
    # The matrix as the library itself restores it.
    meant: torch.Tensor
    # For the header of the file.
    metadata: Mapping[str, str] = MappingProxyType({})


Pack = Callable[[str, torch.Tensor], Packed]
# Raises where the library cannot be had.
Recipe = Callable[[], tuple[Pack, dict[str, Any]]]


def torchao(kind: str, **options: Any) -> tuple[Pack, dict[str, Any]]:
    """Packs a matrix as transformers saves a model of torchao."""
    from torchao.core.config import config_to_dict
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import quant_api, quantize_

    given = {name: _of_torchao(value) for name, value in options.items()}
    config = getattr(quant_api, kind)(**given)

    def pack(module: str, weight: torch.Tensor) -> Packed:
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight.data.copy_(weight)
        quantize_(linear, config)
        tensors, metadata = flatten_tensor_state_dict({f"{module}.weight": linear.weight.data})
        metadata.pop("tensor_names")
        return Packed(tensors, linear.weight.dequantize(), metadata)

    settings = {
        "quant_method": "torchao",
        "quant_type": {"default": config_to_dict(config)},
        "include_input_output_embeddings": False,
    }
    return pack, settings


def _of_torchao(value: Any) -> Any:
    """Granularities and types by their names."""
    if isinstance(value, str):
        return getattr(torch, value)
    if not isinstance(value, tuple):
        return value
    from torchao.quantization import granularity

    return getattr(granularity, value[0])(*value[1:])


def compressed_tensors(compressor: str, format: str, **weights: Any) -> tuple[Pack, dict[str, Any]]:
    """Scales by its own arithmetic from the smallest and the largest number of a group."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    place, kind = compressor.split(".")
    chosen = getattr(import_module(f"compressed_tensors.compressors.{place}"), kind)
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def pack(module: str, weight: torch.Tensor) -> Packed:
        state = {"weight": weight}
        groups = weight.view(len(weight), -1, args.group_size or weight.shape[1])
        low, high = groups.amin(-1), groups.amax(-1)
        if args.strategy == "tensor":
            low, high = low.min().view(1), high.max().view(1)
        if args.strategy == "tensor_group":
            state["weight_global_scale"] = generate_gparam(weight.amin(), weight.amax())
        scales, zeros = calculate_qparams(low, high, args, state.get("weight_global_scale"))
        state |= {"weight_scale": scales, "weight_zero_point": zeros}
        stored = chosen.compress(state, scheme)
        meant = chosen.decompress(stored, scheme)["weight"]
        if args.strategy == "tensor_group":
            meant = _in_float32(stored, args)
        return Packed({f"{module}.{end}": tensor for end, tensor in stored.items()}, meant)

    group = {"targets": ["Linear"], "weights": args.model_dump(mode="json"), "format": format}
    settings = {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    return pack, settings


def _in_float32(stored: Tensors, args: Any) -> torch.Tensor:
    """Restores a matrix as `decompress` does, but in float32: `decompress` computes in bfloat16."""
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import dequantize

    packed, scales = stored["weight_packed"], stored["weight_scale"].float()
    codes = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1], dtype=torch.float32)
    meant: torch.Tensor = dequantize(
        codes, scales, args=args, global_scale=stored["weight_global_scale"], dtype=torch.float32
    )
    return meant


def bitsandbytes_4bit(kind: str, nested: bool) -> tuple[Pack, dict[str, Any]]:
    """Packs a matrix as a `Linear4bit` saves itself."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    def pack(module: str, weight: torch.Tensor) -> Packed:
        codes, state = quantize_4bit(weight, compress_statistics=nested, quant_type=kind, blocksize=64)
        beside = {f"{module}.weight.{end}": tensor for end, tensor in state.as_dict(packed=True).items()}
        return Packed({f"{module}.weight": codes, **beside}, dequantize_4bit(codes, state))

    settings = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": nested,
        "bnb_4bit_quant_storage": "uint8",
    }
    return pack, settings


def bitsandbytes_int8() -> tuple[Pack, dict[str, Any]]:
    """Packs a matrix as a `Linear8bitLt` saves itself."""
    from bitsandbytes.functional import int8_vectorwise_dequant, int8_vectorwise_quant

    def pack(module: str, weight: torch.Tensor) -> Packed:
        codes, scales, _outliers = int8_vectorwise_quant(weight.half())
        stored = {
            f"{module}.weight": codes,
            f"{module}.SCB": scales,
            f"{module}.weight_format": torch.tensor(0).byte(),
        }
        return Packed(stored, int8_vectorwise_dequant(codes, scales))

    return pack, {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}


def auto_round(bits: int, group_size: int, packing: str) -> tuple[Pack, dict[str, Any]]:
    """Words of its layer for PyTorch; the rounding is plain, and the layer's own unpacking says what it means."""
    # Fetches texts to calibrate with, which packing does not.
    sys.modules.setdefault("datasets", MagicMock())
    place = "qlinear_torch" if packing == "auto_round" else "qlinear_torch_zp"
    layer = import_module(f"auto_round_extension.torch.{place}").QuantLinear
    top = 2**bits - 1

    def pack(module: str, weight: torch.Tensor) -> Packed:
        groups = weight.view(len(weight), -1, group_size)
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scales = ((high - low) / top).half().float()
        zeros = (-low / scales).round()
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight.data.copy_(_rounded(weight, scales, zeros, group_size, top))
        words = layer(bits, group_size, weight.shape[1], weight.shape[0], bias=False)
        words.device = torch.device("cpu")
        words.pack(linear, scales, zeros)
        stored = {f"{module}.{end}": tensor.clone() for end, tensor in words.state_dict().items()}
        # It multiplies by scales of the type that these have.
        words.scales = words.scales.float()
        return Packed(stored, words(torch.eye(weight.shape[1])).T)

    settings = {
        "quant_method": "auto-round",
        "packing_format": packing,
        "bits": bits,
        "group_size": group_size,
        "sym": False,
        "data_type": "int",
    }
    return pack, settings


def _rounded(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_size: int, top: int
) -> torch.Tensor:
    """Numbers that codes can mean: packing rounds, and does not clamp."""
    scales, zeros = (part.repeat_interleave(group_size, 1) for part in (scales, zeros))
    return ((weight / scales + zeros).round().clamp(0, top) - zeros) * scales


_INT = {"type": "int", "strategy": "group"}
_PACKED = partial(compressed_tensors, "pack_quantized.PackedQuantizationCompressor", "pack-quantized")
RECIPES: dict[str, Recipe] = {
    "torchao int8 rows": partial(torchao, "Int8WeightOnlyConfig", version=2),
    "torchao int8 groups": partial(
        torchao, "IntxWeightOnlyConfig", weight_dtype="int8", granularity=("PerGroup", 16)
    ),
    # Its packed int4 and rounded rows of float8 are only made on a GPU.
    "torchao int4 in groups": partial(
        torchao, "IntxWeightOnlyConfig", weight_dtype="int4", granularity=("PerGroup", 32)
    ),
    "torchao float8": partial(torchao, "Float8WeightOnlyConfig"),
    "compressed-tensors W4A16": partial(_PACKED, num_bits=4, group_size=16, symmetric=True, **_INT),
    "compressed-tensors W4A16 with zeros": partial(_PACKED, num_bits=4, group_size=16, symmetric=False, **_INT),
    "compressed-tensors W3A16": partial(_PACKED, num_bits=3, group_size=32, symmetric=True, **_INT),
    "compressed-tensors W5A16 with zeros": partial(_PACKED, num_bits=5, group_size=16, symmetric=False, **_INT),
    "compressed-tensors W8A16": partial(
        _PACKED, num_bits=8, type="int", strategy="channel", symmetric=True
    ),
    "compressed-tensors int8": partial(
        compressed_tensors, "naive_quantized.IntQuantizationCompressor", "int-quantized",
        num_bits=8, type="int", strategy="channel", symmetric=True,
    ),
    "compressed-tensors float8": partial(
        compressed_tensors, "naive_quantized.FloatQuantizationCompressor", "float-quantized",
        num_bits=8, type="float", strategy="tensor", symmetric=True,
    ),
    "compressed-tensors NVFP4": partial(
        compressed_tensors, "nvfp4.NVFP4PackedCompressor", "nvfp4-pack-quantized",
        num_bits=4, type="float", strategy="tensor_group", symmetric=True, group_size=16,
        scale_dtype=torch.float8_e4m3fn, zp_dtype=torch.float8_e4m3fn,
    ),
    "compressed-tensors MXFP4": partial(
        compressed_tensors, "mxfp4.MXFP4PackedCompressor", "mxfp4-pack-quantized",
        num_bits=4, type="float", strategy="group", symmetric=True, group_size=32,
        scale_dtype=torch.uint8, zp_dtype=torch.uint8,
    ),
    "compressed-tensors MXFP8": partial(
        compressed_tensors, "mxfp8.MXFP8QuantizationCompressor", "mxfp8-quantized",
        num_bits=8, type="float", strategy="group", symmetric=True, group_size=32,
        scale_dtype=torch.uint8, zp_dtype=torch.uint8,
    ),
    "bitsandbytes nf4": partial(bitsandbytes_4bit, "nf4", nested=False),
    "bitsandbytes nf4 nested": partial(bitsandbytes_4bit, "nf4", nested=True),
    "bitsandbytes fp4": partial(bitsandbytes_4bit, "fp4", nested=True),
    "bitsandbytes int8": bitsandbytes_int8,
    "AutoRound 4 bits": partial(auto_round, 4, 32, "auto_round"),
    "AutoRound 3 bits": partial(auto_round, 3, 32, "auto_round"),
    "AutoRound 5 bits": partial(auto_round, 5, 32, "auto_round"),
    "AutoRound 2 bits, words of GPTQ": partial(auto_round, 2, 32, "auto_round:auto_gptq"),
    "AutoRound 8 bits, words of GPTQ": partial(auto_round, 8, 32, "auto_round:auto_gptq"),
}  # fmt: skip
