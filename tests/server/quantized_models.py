"""Tiny models in quantized formats: the folder of a checkpoint, and transformers' model of the numbers that it means.

A packer gets the weights of a matrix and returns the tensors of its module and the numbers that they mean. Packers are
written from the rules of a format; where its library can be installed, the tests compare with that.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

Tensors = dict[str, torch.Tensor]
# From a module's name and its weight [out, in]: tensors by the ends of their names, and their meaning. An end that
# begins with _ or a dot belongs to the name itself.
Packer = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]

_LINEAR = re.compile(r"model\.layers\..*(_proj|shared_expert\.\w+|w[123])\.weight")


class Quantized(NamedTuple):
    """A model folder, and transformers' own model of the numbers in it."""

    folder: Path
    oracle: Any


def is_linear(name: str) -> bool:
    """Whether a tensor is a matrix of a layer, in models like a Llama."""
    return _LINEAR.fullmatch(name) is not None


def quantize(
    healthy: Path,
    folder: Path,
    packer: Packer,
    config: dict[str, Any],
    chosen: Callable[[str], bool] = is_linear,
) -> Quantized:
    """A copy of a model, the matrices that are chosen by name packed."""
    shutil.copytree(healthy, folder)
    numbers = load_file(folder / "model.safetensors")
    stored: Tensors = {}
    for name in list(numbers):
        if not chosen(name):
            stored[name] = numbers[name]
            continue
        module = name.removesuffix(".weight")
        tensors, meant = packer(module, numbers[name])
        numbers[name] = meant.to(numbers[name].dtype).contiguous()
        stored.update({_join(module, end): tensor.contiguous().clone() for end, tensor in tensors.items()})
    save_file(numbers, folder / "model.safetensors")
    oracle: Any = AutoModelForCausalLM.from_pretrained(folder)
    save_file(stored, folder / "model.safetensors")
    change_settings(folder, config)
    return Quantized(folder, oracle.eval())


def _join(module: str, end: str) -> str:
    """The name of a tensor of a module, or beside one that has no module of its own."""
    return f"{module}{end}" if end.startswith(("_", ".")) or not end else f"{module}.{end}"


def change_settings(folder: Path, settings: dict[str, Any] | None) -> None:
    """Write quantization_config into config.json."""
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    raw["quantization_config"] = settings
    path.write_text(json.dumps(raw))


def words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of values below 2 ** bits as int32 words, filled from their low end, values across words where need be."""
    rows = []
    for row in values.tolist():
        number = sum(int(value) << bits * place for place, value in enumerate(row))
        count = -(-len(row) * bits // 32)
        rows.append(
            [
                int.from_bytes(number.to_bytes(4 * count, "little")[4 * i : 4 * i + 4], "little", signed=True)
                for i in range(count)
            ]
        )
    return torch.tensor(rows, dtype=torch.int32)


class Rounded(NamedTuple):
    """Unsigned codes [out, in], zeros and scales [out, groups], and what they mean."""

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    meant: torch.Tensor


def round_to_groups(
    weight: torch.Tensor,
    bits: int,
    group_size: int,
    has_zeros: bool,
    group_of_column: torch.Tensor | None = None,
    scale_dtype: torch.dtype = torch.float16,
) -> Rounded:
    """Integers in groups; `group_size` 0 means a row."""
    num_columns = weight.shape[1]
    size = group_size or num_columns
    group = torch.arange(num_columns) // size if group_of_column is None else group_of_column.long()
    count, top = int(group.max()) + 1, (1 << bits) - 1
    low, high = torch.zeros(len(weight), count), torch.zeros(len(weight), count)
    for number in range(count):
        part = weight[:, group == number].float()
        low[:, number], high[:, number] = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
    if has_zeros:
        scales = ((high - low) / top).clamp(min=1e-3).to(scale_dtype).float()
        zeros = (-low / scales).round().clamp(0, top)
    else:
        scales = (torch.maximum(-low, high) / (1 << bits - 1)).clamp(min=1e-3).to(scale_dtype).float()
        zeros = torch.full_like(scales, float(1 << bits - 1))
    codes = (weight.float() / scales[:, group] + zeros[:, group]).round().clamp(0, top)
    meant = (codes - zeros[:, group]) * scales[:, group]
    return Rounded(codes.to(torch.uint8), zeros.to(torch.uint8), scales.to(scale_dtype), meant)


def healthy(saved_model: Callable[..., Any], **options: Any) -> Path:
    """A folder with heads that two, three and four shards can share; shards begin inside groups, and inside bytes."""
    heads = {"num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 6}
    folder: Path = saved_model(**{"family": "llama", "num_hidden_layers": 2, **heads, **options}).folder
    return folder


def maker(
    models: dict[str, tuple[Packer, dict[str, Any]]], of: Path, folder: Path
) -> Callable[[str], Quantized]:
    """Makes a model of a table, once."""
    made: dict[str, Quantized] = {}

    def make(name: str) -> Quantized:
        if name not in made:
            torch.manual_seed(0)
            made[name] = quantize(of, folder / "-".join(re.findall(r"\w+", name)), *models[name])
        return made[name]

    return make
