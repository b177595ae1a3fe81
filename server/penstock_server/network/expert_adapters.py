"""Fits what an adapter does to experts to this rank's part of them.

PEFT has two kinds. Where a model keeps the matrices of all experts in one parameter, an adapter has one pair of
matrices for it: A with the ranks of one expert after those of the other, B with the experts of each rank side by side.
Where both parameters are of one module, the pair of the first is that of the `base_layer` of the second. Where each
expert has modules, these have ordinary pairs, and perhaps magnitudes (DoRA).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from penstock_server.base.errors import AdapterRefused
from penstock_server.network.adapter_tensors import (
    Names,
    TensorReader,
    check_magnitude,
    refuse_any,
    require_shape,
)
from penstock_server.network.layers.adapted_experts import ExpertMatrices, ExpertWeights
from penstock_server.network.layers.moe import Experts

# The first release of PEFT that sees inputs and outputs of such a parameter as the model does.
_SINCE = (0, 19)


class _Pair(NamedTuple):
    """The matrices of all experts for one product, in float32."""

    down: torch.Tensor  # [num_experts, rank, inputs]
    up: torch.Tensor  # [num_experts, outputs, rank], scaled
    factor: torch.Tensor | None = None  # [num_experts, outputs]: multiplies the base model's product

    def of(self, experts: range) -> "_Pair":
        """The matrices of some experts."""
        return _Pair(*(None if it is None else it[experts.start : experts.stop] for it in self))  # type: ignore[arg-type]


class _Single(NamedTuple):
    """The matrices of one expert."""

    down: torch.Tensor  # [rank, inputs]
    up: torch.Tensor  # [outputs, rank], scaled
    factor: torch.Tensor | None  # [outputs]


class _Layout(NamedTuple):
    """Where a model has the parameters of all experts, that of gates and ups first, and where their pairs are."""

    parameters: tuple[str, str]
    # The modules of the pairs where both parameters have one.
    modules: tuple[str, str]

    def holders(self, asked: Sequence[int]) -> list[str]:
        """The modules of the pairs of these parameters."""
        is_nested = self.modules[0] == f"{self.modules[1]}.base_layer"
        return [*self.modules[-len(asked) :]] if is_nested and asked else [self.modules[it] for it in asked]


def modules_of(experts: Experts) -> list[str]:
    """The modules that an adapter may have matrices for."""
    if experts.moe.flat:
        # PEFT takes the tensor of all experts for one matrix.
        return []
    stacked = (module for layout in _layouts(experts) for module in layout.modules)
    return [*stacked, *(name for names in _singles(experts) for name in names)]


def fit_experts(experts: Experts, reader: TensorReader) -> ExpertWeights | None:
    """This rank's part; None where the adapter does nothing to these experts. Raises AdapterRefused."""
    if experts.moe.flat:
        return None
    singles = {name for names in _singles(experts) for name in names}
    for module in modules_of(experts):
        names = reader.modules.get(module, {})
        known = ("A", "B", "magnitude") if module in singles else ("A", "B")
        refuse_any(reader.folder, names, [kind for kind in names if kind not in known])
    gate_up, down = _pairs_of_parameters(experts, reader) or _pairs_of_modules(experts, reader)
    if not gate_up and down is None:
        return None
    here = experts.share.experts
    ups, down = [pair.of(here) for pair in gate_up], None if down is None else down.of(here)
    return ExpertWeights(_gate_up(experts, ups), _down(experts, down))


def _layouts(experts: Experts) -> list[_Layout]:
    """The ways in which releases of transformers have the parameters of all experts."""
    names = (experts.names.experts_gate_up, experts.names.experts_down)
    parameters = (experts.prefix + names[0], experts.prefix + names[1])
    first, second = (name.rpartition(".")[0] for name in parameters)
    if first == second:
        return [_Layout(parameters, (f"{second}.base_layer", second))]
    # A module for each parameter; since transformers 5 one beside them has both.
    both = f"{first.rpartition('.')[0]}.experts"
    later = _Layout((f"{both}.gate_up_proj", f"{both}.down_proj"), (f"{both}.base_layer", both))
    return [_Layout(parameters, (first, second)), later]


def _singles(experts: Experts) -> list[list[str]]:
    """The modules of all experts, for each of their matrices."""
    names = experts.names
    ways = (names.expert_gate, names.expert_up)[-experts.num_ups :]
    every = range(experts.moe.num_experts)
    return [[experts.prefix + name.format(expert) for expert in every] for name in (*ways, names.expert_down)]


def _pairs_of_parameters(experts: Experts, reader: TensorReader) -> tuple[list[_Pair], _Pair | None] | None:
    """The pairs for the parameters of all experts: one for gates and ups together. None where there are none."""
    sizes, config = _sizes(experts), reader.folder.config
    for layout in _layouts(experts):
        asked = [number for number in (0, 1) if config.has_parameter(layout.parameters[number])]
        holders = layout.holders(asked)
        if [module for module in layout.modules if module in reader.modules] != holders:
            key = reader.folder.key_in_file("target_parameters")
            module = layout.modules[1]
            raise AdapterRefused(
                f"{key}: the tensors of {module} are not those of the parameters that it names"
            )
        if asked:
            found: list[_Pair | None] = [None, None]
            for number, holder in zip(asked, holders, strict=True):
                found[number] = _pair(experts, reader, holder, layout.parameters[number], sizes[number])
            gate_up, down = found
            return [] if gate_up is None else [gate_up], down
    return None


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
    """The pairs for the modules of each expert: gates and ups apart."""
    *ups, downs = _singles(experts)
    if not any(module in reader.modules for modules in (*ups, downs) for module in modules):
        return [], None
    *up_sizes, down_size = _sizes(experts)
    size = (up_sizes[0][0] // experts.num_ups, up_sizes[0][1])
    found = [_padded(list(_pairs(modules, reader, size)), size) for modules in ups]
    return found, _padded(list(_pairs(downs, reader, down_size)), down_size)


def _pairs(modules: Sequence[str], reader: TensorReader, size: tuple[int, int]) -> Iterator[_Single]:
    folder, (outputs, inputs) = reader.folder, size
    for module in modules:
        if module not in reader.modules:
            if folder.config.targets.has(module):
                raise AdapterRefused(f"{folder.name_in_file(module)}.lora_A.weight is missing")
            yield _Single(torch.zeros(0, inputs), torch.zeros(outputs, 0), None)
            continue
        names = _both(reader, module)
        rank = folder.entries[names["A"]].shape[0]
        if rank == 0:
            raise reader.refused(names["A"], "it has rank 0")
        require_shape(folder, names["A"], (rank, inputs))
        require_shape(folder, names["B"], (outputs, rank))
        check_magnitude(folder, module, names, outputs)
        down, up = reader.numbers(names["A"]), reader.numbers(names["B"]) * folder.config.scale(module, rank)
        if "magnitude" not in names:
            yield _Single(down, up, None)
            continue
        # Experts with modules have no biases, which the factor would have to leave alone.
        whole = reader.base(names["magnitude"], module, size).float() + up @ down
        factor = reader.numbers(names["magnitude"]) / whole.norm(dim=1)
        yield _Single(down, up * factor[:, None], factor)


def _padded(singles: list[_Single], size: tuple[int, int]) -> _Pair:
    """Experts of smaller ranks get zeros."""
    rank, (outputs, inputs) = max(len(it.down) for it in singles), size
    factor = None if all(it.factor is None for it in singles) else torch.ones(len(singles), outputs)
    shapes = (len(singles), rank, inputs), (len(singles), outputs, rank)
    found = _Pair(torch.zeros(shapes[0]), torch.zeros(shapes[1]), factor)
    for expert, it in enumerate(singles):
        found.down[expert, : len(it.down)] = it.down
        found.up[expert, :, : len(it.down)] = it.up
        if factor is not None and it.factor is not None:
            factor[expert] = it.factor
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
    share, size = experts.size, experts.moe.expert_size
    mine = torch.arange(experts.share.inner.start, experts.share.inner.stop)
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
    factor = None
    if any(pair.factor is not None for pair in pairs):
        # Only modules of experts have magnitudes: a pair for each of the ways.
        parts = (torch.ones(count, size) if pair.factor is None else pair.factor for pair in pairs)
        factor = torch.cat([part[:, mine] for part in parts], dim=1)
    return _cast(experts, _Pair(torch.cat([pair.down for pair in pairs], dim=1), up, factor), first)


def _down(experts: Experts, pair: _Pair | None) -> ExpertMatrices | None:
    if pair is None:
        return None
    inner = experts.share.inner
    first = torch.zeros(experts.hidden_size, dtype=torch.int32)
    down = pair.down[:, :, inner.start : inner.stop]
    return _cast(experts, _Pair(down, pair.up.mT, pair.factor), first)


def _cast(experts: Experts, pair: _Pair, first: torch.Tensor) -> ExpertMatrices:
    """`pair.up`: columns last."""
    down, up = (matrix.to(experts.placement.dtype).contiguous() for matrix in (pair.down, pair.up))
    return ExpertMatrices(down, up, first, pair.factor)
