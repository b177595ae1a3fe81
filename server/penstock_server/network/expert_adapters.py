"""Fits what an adapter does to experts to this rank's part of them.

PEFT has two kinds. Where a model keeps the matrices of all experts in one parameter, an adapter has one pair of
matrices for it: A with the ranks of one expert after those of the other, B with the experts of each rank side by side.
The pair of the first parameter is that of the `base_layer` of the second. Where each expert has modules, these have
ordinary pairs.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from penstock_server.base.errors import AdapterRefused
from penstock_server.network.adapter_tensors import Names, TensorReader, refuse_any, require_shape
from penstock_server.network.layers.adapted_experts import ExpertMatrices, ExpertWeights
from penstock_server.network.layers.moe import Experts

# The first release of PEFT that sees inputs and outputs of such a parameter as the model does.
_SINCE = (0, 19)


class _Pair(NamedTuple):
    """The matrices of all experts for one product, in float32."""

    down: torch.Tensor  # [num_experts, rank, inputs]
    up: torch.Tensor  # [num_experts, outputs, rank], scaled


def modules_of(experts: Experts) -> list[str]:
    """The modules that an adapter may have matrices for."""
    stacked = _stacked(experts)
    singles = (name for names in _singles(experts) for name in names)
    return [*([] if stacked is None else [stacked, f"{stacked}.base_layer"]), *singles]


def fit_experts(experts: Experts, reader: TensorReader) -> ExpertWeights | None:
    """This rank's part; None where the adapter does nothing to these experts. Raises AdapterRefused."""
    for module in modules_of(experts):
        names = reader.modules.get(module, {})
        refuse_any(reader.folder, names, [kind for kind in names if kind not in ("A", "B")])
    gate_up, down = _pairs_of_parameters(experts, reader) or _pairs_of_modules(experts, reader)
    if not gate_up and down is None:
        return None
    return ExpertWeights(_gate_up(experts, gate_up), _down(experts, down))


def _stacked(experts: Experts) -> str | None:
    """The module that has the parameters of all experts."""
    module, _, parameter = (experts.prefix + experts.names.experts_gate_up).rpartition(".")
    return None if parameter == "weight" else module


def _singles(experts: Experts) -> list[list[str]]:
    """The modules of all experts, for each of their matrices."""
    names = experts.names
    ways = (names.expert_gate, names.expert_up)[-experts.num_ups :]
    every = range(experts.moe.num_experts)
    return [[experts.prefix + name.format(expert) for expert in every] for name in (*ways, names.expert_down)]


def _pairs_of_parameters(experts: Experts, reader: TensorReader) -> tuple[list[_Pair], _Pair | None] | None:
    """Of the parameters of all experts: one for gates and ups together. None where there are none."""
    module, names = _stacked(experts), experts.names
    if module is None:
        return None
    sizes = _sizes(experts)
    parameters = [
        f"{module}.{name.rpartition('.')[2]}" for name in (names.experts_gate_up, names.experts_down)
    ]
    asked = [number for number in (0, 1) if reader.folder.config.has_parameter(parameters[number])]
    holders = [f"{module}.base_layer", module][-len(asked) :] if asked else []
    known = [holder for holder in (f"{module}.base_layer", module) if holder in reader.modules]
    if known != [holder for holder in holders if holder in reader.modules] or len(known) < len(asked):
        key = reader.folder.key_in_file("target_parameters")
        raise AdapterRefused(f"{key}: the tensors of {module} are not those of the parameters that it names")
    if not asked:
        return None
    found: list[_Pair | None] = [None, None]
    for number, holder in zip(asked, holders, strict=True):
        found[number] = _pair(experts, reader, holder, parameters[number], sizes[number])
    gate_up, down = found
    return [] if gate_up is None else [gate_up], down


def _sizes(experts: Experts) -> list[tuple[int, int]]:
    """Outputs and inputs of both products of an expert."""
    size, hidden = experts.moe.expert_size, experts.hidden_size
    return [(experts.num_ups * size, hidden), (hidden, size)]


def _pair(
    experts: Experts, reader: TensorReader, holder: str, parameter: str, size: tuple[int, int]
) -> _Pair:
    folder, names, count = reader.folder, _both(reader, holder), experts.moe.num_experts
    (rows, width), (outputs, inputs) = folder.entries[names["A"]].shape, size
    is_turned = not experts.moe.interleaved and (width, folder.entries[names["B"]].shape[0]) == (
        outputs,
        inputs,
    )
    if is_turned and inputs == outputs:
        # Only the release tells.
        is_turned = folder.config.peft_version < _SINCE
    a, b = (outputs, inputs) if is_turned else (inputs, outputs)
    if rows == 0 or rows % count:
        raise reader.refused(names["A"], f"it has {rows} rows; expected some for each of {count} experts")
    require_shape(folder, names["A"], (rows, a))
    require_shape(folder, names["B"], (b, rows))
    rank = rows // count
    first = reader.numbers(names["A"]).view(count, rank, a)
    second = reader.numbers(names["B"]).view(b, rank, count).permute(2, 0, 1) * folder.config.scale(
        parameter, rank
    )
    return _Pair(second.mT, first.mT) if is_turned else _Pair(first, second)


def _pairs_of_modules(experts: Experts, reader: TensorReader) -> tuple[list[_Pair], _Pair | None]:
    """Of the modules of each expert: gates and ups apart."""
    *ups, downs = _singles(experts)
    if not any(module in reader.modules for modules in (*ups, downs) for module in modules):
        return [], None
    *up_sizes, down_size = _sizes(experts)
    size = (up_sizes[0][0] // experts.num_ups, up_sizes[0][1])
    found = [_padded(list(_pairs(modules, reader, size)), size) for modules in ups]
    return found, _padded(list(_pairs(downs, reader, down_size)), down_size)


def _pairs(
    modules: Sequence[str], reader: TensorReader, size: tuple[int, int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    folder, (outputs, inputs) = reader.folder, size
    for module in modules:
        if module not in reader.modules:
            if folder.config.targets.has(module):
                raise AdapterRefused(f"{folder.name_in_file(module)}.lora_A.weight is missing")
            yield torch.zeros(0, inputs), torch.zeros(outputs, 0)
            continue
        names = _both(reader, module)
        rank = folder.entries[names["A"]].shape[0]
        if rank == 0:
            raise reader.refused(names["A"], "it has rank 0")
        require_shape(folder, names["A"], (rank, inputs))
        require_shape(folder, names["B"], (outputs, rank))
        yield reader.numbers(names["A"]), reader.numbers(names["B"]) * folder.config.scale(module, rank)


def _padded(pairs: list[tuple[torch.Tensor, torch.Tensor]], size: tuple[int, int]) -> _Pair:
    """Experts of smaller ranks get zeros."""
    rank, (outputs, inputs) = max(len(down) for down, _ in pairs), size
    found = _Pair(torch.zeros(len(pairs), rank, inputs), torch.zeros(len(pairs), outputs, rank))
    for expert, (down, up) in enumerate(pairs):
        found.down[expert, : len(down)] = down
        found.up[expert, :, : len(down)] = up
    return found


def _both(reader: TensorReader, module: str) -> Names:
    names = reader.modules[module]
    for kind in "AB":
        if kind not in names:
            raise AdapterRefused(f"{reader.folder.name_in_file(module)}.lora_{kind}.weight is missing")
        if len(reader.folder.entries[names[kind]].shape) != 2:
            raise reader.refused(names[kind], "it is no matrix")
    return names


def _gate_up(experts: Experts, pairs: list[_Pair]) -> ExpertMatrices | None:
    """Side by side: gates, then ups, this rank's part of each."""
    if not pairs:
        return None
    share, size = experts.share, experts.moe.expert_size
    start = experts.placement.group.rank * share
    mine = torch.arange(start, start + share)
    if len(pairs) == 2:
        chosen = [pair.up[:, mine] for pair in pairs]
    elif experts.moe.interleaved:
        chosen = [pairs[0].up[:, 2 * mine + odd] for odd in (0, 1)]
    else:
        chosen = [pairs[0].up[:, part * size + mine] for part in range(experts.num_ups)]
    width, count = max(part.shape[2] for part in chosen), len(pairs[0].up)
    up = torch.zeros(count, width, experts.num_ups * share)
    first = torch.zeros(experts.num_ups * share, dtype=torch.int32)
    for number, part in enumerate(chosen):
        columns = slice(number * share, (number + 1) * share)
        up[:, : part.shape[2], columns] = part.mT
        # Ups of their own have the ranks behind those of the gates.
        first[columns] = pairs[0].down.shape[1] if number and len(pairs) == 2 else 0
    return _cast(experts, torch.cat([pair.down for pair in pairs], dim=1), up, first)


def _down(experts: Experts, pair: _Pair | None) -> ExpertMatrices | None:
    if pair is None:
        return None
    start = experts.placement.group.rank * experts.share
    first = torch.zeros(experts.hidden_size, dtype=torch.int32)
    return _cast(experts, pair.down[:, :, start : start + experts.share], pair.up.mT, first)


def _cast(experts: Experts, down: torch.Tensor, up: torch.Tensor, first: torch.Tensor) -> ExpertMatrices:
    dtype = experts.placement.dtype
    return ExpertMatrices(down.to(dtype).contiguous(), up.to(dtype).contiguous(), first)
