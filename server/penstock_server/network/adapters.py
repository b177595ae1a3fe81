"""Fits adapters to the layers of a model: this rank's part of each, and where on the device it is."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from penstock_kernels import (
    AdapterRows,
    AdapterTable,
    AdapterWeights,
    EmbeddingTable,
    EmbeddingWeights,
    adapt_embedding,
    add_adapters,
)
from torch import nn

from penstock_server.files.adapter.folder import AdapterFolder
from penstock_server.network.adapted_embedding import fit_embedding
from penstock_server.network.adapter_tensors import (
    Names,
    TensorReader,
    Vocabulary,
    by_module,
    check,
    refuse_any,
    tokens_of,
)
from penstock_server.network.base_weights import BaseWeights
from penstock_server.network.borrowed.adapted import BorrowedEmbedding
from penstock_server.network.decoder import Decoder
from penstock_server.network.expert_adapters import fit_experts, modules_of
from penstock_server.network.layers.adapted import AdaptedLayer, AdaptedPart
from penstock_server.network.layers.adapted_experts import ExpertTables, ExpertWeights
from penstock_server.network.layers.embedding import VocabEmbedding
from penstock_server.network.layers.moe import Experts
from penstock_server.network.layers.own_weights import OwnWeights, TakesOwn, Vectors, takes_own
from penstock_server.network.model import Model
from penstock_server.network.norm_adapters import fit_own, modules_of_norm

# Ranks of one layer's adapter that a captured step has memory for: those of all projections of the layer, such as 3 of
# rank 256. A step of 256 rows keeps 8 MB for them.
ROOM_IN_GRAPHS = 1024
# Rows of a step with prompts.
_MANY_ROWS = 1000


class _Change(NamedTuple):
    """An adapter's change of one module, in float32: y becomes factor * (W x) + up (down x) + its bias + bias."""

    down: torch.Tensor  # [rank, in_features]
    up: torch.Tensor  # [out_features, rank], scaled
    factor: torch.Tensor | None  # [out_features]
    # In addition to the base model's, and in the place of it.
    bias: torch.Tensor | None  # [out_features]
    new_bias: torch.Tensor | None  # [out_features]


class HostAdapter(NamedTuple):
    """An adapter in the memory of the host, this rank's part."""

    adapter_id: str
    # By number of the layer.
    weights: dict[int, AdapterWeights]
    max_rank: int
    # See `AdapterConfig.invocation`.
    invocation: tuple[int, ...]
    embedding: EmbeddingWeights | None
    # By number of the layer that takes them.
    own: dict[int, Vectors]
    # By the prefix of the layer.
    experts: dict[str, ExpertWeights]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        of_embedding = 0 if self.embedding is None else self.embedding.num_bytes
        of_linears = sum(weights.num_bytes for weights in self.weights.values())
        of_norms = sum(it.nbytes for vectors in self.own.values() for it in vectors.values())
        return of_embedding + of_linears + of_norms + sum(it.num_bytes for it in self.experts.values())


class AdaptedModel:
    """The layers of a model that can carry adapters, and their tables on the device."""

    def __init__(self, model: Model, num_adapters: int, base: BaseWeights, device: torch.device) -> None:
        self.device = device
        self._base = base
        modules = list(model.modules()) if isinstance(model, nn.Module) else []
        self._layers = _adapted_layers(modules)
        # Modules of other stages: an adapter is checked against the whole model.
        self._elsewhere = [module for part in getattr(model, "elsewhere", ()) for module in part.modules()]
        self._is_embedding_here = model.stage.is_first
        self._tables = [AdapterTable(num_adapters, device) for _ in self._layers]
        for layer, table in zip(self._layers, self._tables, strict=True):
            layer.adapters = table
        # The embedding of a borrowed model carries no adapters.
        self._tokens: VocabEmbedding | BorrowedEmbedding | None = getattr(model, "embedding", None)
        self._embedding: VocabEmbedding | None = model.embedding if isinstance(model, Decoder) else None
        self._embedding_table = EmbeddingTable(num_adapters, device)
        if self._embedding is not None:
            self._embedding.embedding_adapters = self._embedding_table
        self._norms: list[TakesOwn] = [module for module in modules if takes_own(module)]  # type: ignore[misc]
        self._owned = [OwnWeights() for _ in self._norms]
        for norm, owned in zip(self._norms, self._owned, strict=True):
            norm.own = owned
        self._experts = {module.prefix: module for module in modules if isinstance(module, Experts)}
        self._expert_tables = {
            prefix: ExpertTables(num_adapters, experts.share, device)
            for prefix, experts in self._experts.items()
        }
        for prefix, experts in self._experts.items():
            experts.adapters = self._expert_tables[prefix]
        # In C a launch has no memory of its own.
        self._has_graphs = device.type == "cuda"
        # Whether decode steps with the adapters that are on the device do what a recording of one does.
        self.is_recordable = True

    @property
    def can_adapt(self) -> bool:
        """Whether any layer can carry adapters."""
        return bool(self._layers)

    def place(self, number: int, adapter: HostAdapter) -> None:
        """Copy an adapter to the device, where it gets a number. Steps that are launched later find it there."""
        for index, table in enumerate(self._tables):
            weights = adapter.weights.get(index)
            if weights is not None or table.entries[number] is not None:
                table.place(number, None if weights is None else weights.to(self.device))
        embedding = adapter.embedding
        if embedding is not None or self._embedding_table.entries[number] is not None:
            self._embedding_table.place(number, None if embedding is None else embedding.to(self.device))
        for index, owned in enumerate(self._owned):
            vectors = adapter.own.get(index)
            owned.place(number, None if vectors is None else self._on_device(vectors))
        for prefix, experts in self._expert_tables.items():
            if prefix in adapter.experts or experts.has(number):
                experts.place(number, adapter.experts.get(prefix))
        self.is_recordable = self._can_record()

    def clear(self, number: int) -> None:
        """Give the device's memory of a number back."""
        for table in self._tables:
            if table.entries[number] is not None:
                table.place(number, None)
        if self._embedding_table.entries[number] is not None:
            self._embedding_table.place(number, None)
        for owned in self._owned:
            owned.place(number, None)
        for experts in self._expert_tables.values():
            if experts.has(number):
                experts.place(number, None)
        self.is_recordable = self._can_record()

    def _can_record(self) -> bool:
        """Whether an adapter has norms or experts of its own is no data, nor is how much memory a launch has."""
        has_room = not self._has_graphs or all(table.max_rank <= ROOM_IN_GRAPHS for table in self._tables)
        return has_room and not any((*self._owned, *self._expert_tables.values()))

    def rehearse(self) -> None:
        """Launch what steps with adapters launch, on a row without one: in each layer, as no two may be alike."""
        for layer in self._layers:
            _launch_for_nobody(layer, 1)
        if self._layers:
            # Many rows are sorted by another variant, whatever the layer.
            _launch_for_nobody(min(self._layers, key=lambda layer: layer.num_columns), _MANY_ROWS)
        nobody = AdapterRows(torch.full((1,), -1, device=self.device))
        if self._embedding is not None:
            x = torch.zeros(
                1, self._embedding.shape[1], dtype=self._embedding.placement.dtype, device=self.device
            )
            first = self._embedding.first
            adapt_embedding(x, torch.zeros_like(nobody.numbers), nobody, self._embedding_table, first)

    def read(self, folder: AdapterFolder) -> HostAdapter:
        """This rank's part of an adapter. Raises AdapterRefused, with the tensor, where it does not fit the model."""
        vocabulary = self._vocabulary()
        modules = by_module(folder, vocabulary)
        chosen = [_choose(layer.adapted_parts(), modules) for layer in self._layers]
        of_experts = self._check(folder, modules, chosen, vocabulary)
        reader = TensorReader(folder, modules, self._base)
        if self._embedding is None:
            names = modules.get(vocabulary.embedding, {})
            refuse_any(folder, names, [kind for kind in names if kind != "base"])
        weights = {}
        for index, (layer, parts) in enumerate(zip(self._layers, chosen, strict=True)):
            used = [part for part in parts if part.module in modules]
            if used:
                weights[index] = self._on_host(_fit(layer, used, reader), layer.placement.dtype)
        fitted = ((prefix, fit_experts(module, reader)) for prefix, module in self._experts.items())
        experts = {prefix: self._pinned(found) for prefix, found in fitted if found is not None}
        others = {name: names for name, names in modules.items() if name not in of_experts}
        rank = max([_max_rank(folder, others), *(found.rank for found in experts.values())])
        fitted_norms = ((index, fit_own(norm, reader)) for index, norm in enumerate(self._norms))
        own = {index: self._pinned_vectors(found) for index, found in fitted_norms if found is not None}
        invocation, embedding = folder.config.invocation, self._embedding_of(reader)
        return HostAdapter(folder.content_hash, weights, rank, invocation, embedding, own, experts)

    def _check(
        self,
        folder: AdapterFolder,
        modules: dict[str, Names],
        chosen: Sequence[Sequence[AdaptedPart]],
        vocabulary: Vocabulary,
    ) -> set[str]:
        """Refuse an adapter that does not fit the model, whichever stage has the layer. The modules of experts."""
        others = [_choose(it.adapted_parts(), modules) for it in _adapted_layers(self._elsewhere)]
        parts = [part for parts in (*chosen, *others) for part in parts]
        all_norms = [*self._norms, *(module for module in self._elsewhere if takes_own(module))]
        norms = {name: shape for norm in all_norms for name, shape in modules_of_norm(norm).items()}
        all_experts = [
            *self._experts.values(),
            *(module for module in self._elsewhere if isinstance(module, Experts)),
        ]
        of_experts = {name for experts in all_experts for name in modules_of(experts)}
        check(folder, modules, parts, vocabulary, norms, of_experts)
        return of_experts

    def _pinned(self, weights: ExpertWeights) -> ExpertWeights:
        return weights.pinned() if self.device.type == "cuda" else weights

    def _pinned_vectors(self, vectors: Vectors) -> Vectors:
        if self.device.type != "cuda":
            return vectors
        return {attribute: vector.pin_memory() for attribute, vector in vectors.items()}

    def _on_device(self, vectors: Vectors) -> Vectors:
        return {name: vector.to(self.device, non_blocking=True) for name, vector in vectors.items()}

    def _embedding_of(self, reader: TensorReader) -> EmbeddingWeights | None:
        if self._embedding is None or not self._is_embedding_here:
            return None
        found = fit_embedding(self._embedding, reader)
        return None if found is None else self._embedding_on_host(found, self._embedding.placement.dtype)

    def _vocabulary(self) -> Vocabulary:
        embedding = self._tokens
        assert embedding is not None, "a model with layers that carry adapters has it"
        layers = (*self._layers, *_adapted_layers(self._elsewhere))
        heads = [part for layer in layers for part in layer.adapted_parts()[0] if part.is_head]
        is_tied = any(part.stored == embedding.name for part in heads)
        return Vocabulary(embedding.name, tuple(part.module for part in heads), embedding.shape, is_tied)

    def _embedding_on_host(self, weights: EmbeddingWeights, dtype: torch.dtype) -> EmbeddingWeights:
        up = None if weights.up is None else weights.up.to(dtype).contiguous()
        cast = EmbeddingWeights(weights.rows.to(dtype).contiguous(), weights.row_of, up)
        if self.device.type != "cuda":
            return cast
        return EmbeddingWeights(*(None if part is None else part.pin_memory() for part in cast))  # type: ignore[arg-type]

    def _on_host(self, weights: AdapterWeights, dtype: torch.dtype) -> AdapterWeights:
        down, up = (matrix.to(dtype).contiguous() for matrix in (weights.down, weights.up))
        cast = weights._replace(down=down, up=up)
        if self.device.type != "cuda":
            return cast
        return AdapterWeights(*(None if part is None else part.pin_memory() for part in cast))  # type: ignore[arg-type]


def _adapted_layers(modules: Sequence[nn.Module]) -> list[AdaptedLayer]:
    return [module for module in modules if _can_adapt(module)]  # type: ignore[misc]


def _launch_for_nobody(layer: AdaptedLayer, num_rows: int) -> None:
    """Launch the kernels that a layer uses for adapters, on `num_rows` rows without an adapter."""
    assert layer.adapters is not None, "it has its table"
    inputs = layer.adapted_parts()[0][0].inputs
    device, dtype = layer.adapters.device, layer.placement.dtype
    x = torch.zeros(num_rows, inputs.stop - inputs.start, dtype=dtype, device=device)
    nobody = AdapterRows(torch.full((num_rows,), -1, device=device))
    add_adapters(x.new_zeros(num_rows, layer.num_columns), x, nobody, layer.adapters)


def _can_adapt(module: Any) -> bool:
    """Whether it is an `AdaptedLayer` that stands for some module."""
    return hasattr(module, "adapted_parts") and bool(module.adapted_parts()[0])


def _choose(
    alternatives: Sequence[Sequence[AdaptedPart]], modules: dict[str, Names]
) -> Sequence[AdaptedPart]:
    """The names under which the adapter knows a layer; those of the checkpoint for one that it leaves alone."""
    known = (parts for parts in alternatives if any(part.module in modules for part in parts))
    return next(known, alternatives[0])


def _max_rank(folder: AdapterFolder, modules: dict[str, Names]) -> int:
    """The largest rank of the matrices of low rank; 0 where there are none."""
    names = [names[kind] for names in modules.values() for kind in ("A", "embedding A") if kind in names]
    return max((folder.entries[name].shape[0] for name in names), default=0)


def _change(part: AdaptedPart, reader: TensorReader) -> _Change:
    """The change of a part's whole module."""
    names = reader.modules[part.module]
    new_bias = _vector(names, "bias", reader)
    if "base" in names:
        reader.check_base(names["base"], part.stored or part.module)
    if "saved" in names:
        return _replaced(part, reader.numbers(names["saved"]), new_bias)
    if "tokens" in names:
        return _with_rows(part, tokens_of(reader.folder, names["tokens"]), reader.numbers(names["tokens"]))
    if "A" not in names:
        num_outputs, num_inputs = part.shape
        return _Change(torch.zeros(0, num_inputs), torch.zeros(num_outputs, 0), None, None, new_bias)
    down, up = reader.numbers(names["A"]), reader.numbers(names["B"])
    scale = reader.folder.config.scale(part.module, down.shape[0])
    bias, magnitude = _vector(names, "low-rank bias", reader), _vector(names, "magnitude", reader)
    up = up * scale
    factor = None
    if magnitude is not None:
        factor = magnitude / (_base(part, names["magnitude"], reader) + up @ down).norm(dim=1)
        up = up * factor[:, None]
    return _Change(down, up, factor, None if bias is None else bias * scale, new_bias)


def _replaced(part: AdaptedPart, saved: torch.Tensor, new_bias: torch.Tensor | None) -> _Change:
    """Other weights in the place of the base model's: a product with them and one with the identity."""
    weight = saved.T if part.transposed else saved
    num_outputs, num_inputs = part.shape
    nothing = torch.zeros(num_outputs)
    if num_outputs <= num_inputs:
        return _Change(weight, torch.eye(num_outputs), nothing, None, new_bias)
    return _Change(torch.eye(num_inputs), weight, nothing, None, new_bias)


def _with_rows(part: AdaptedPart, tokens: tuple[int, ...], rows: torch.Tensor) -> _Change:
    """Other weights for some outputs."""
    num_outputs = part.shape[0]
    factor, up = torch.ones(num_outputs), torch.zeros(num_outputs, len(tokens))
    at = torch.tensor(tokens, dtype=torch.int64)
    factor[at] = 0.0
    up[at, torch.arange(len(tokens))] = 1.0
    return _Change(rows, up, factor, None, None)


def _vector(names: Names, kind: str, reader: TensorReader) -> torch.Tensor | None:
    return reader.numbers(names[kind]) if kind in names else None


def _base(part: AdaptedPart, name: str, reader: TensorReader) -> torch.Tensor:
    """The base model's weights of a module, outputs first."""
    return reader.base(name, part.stored or part.module, part.shape, part.transposed).float()


def _fit(layer: AdaptedLayer, parts: Sequence[AdaptedPart], reader: TensorReader) -> AdapterWeights:
    """The changes of a layer's projections, side by side: see `AdapterWeights`."""
    changes = {part.module: _change(part, reader) for part in parts}
    begins, width = dict(_begins(changes)), max(change.down.shape[0] for change in changes.values())
    up = torch.zeros(width, layer.num_columns)
    first = torch.full((layer.num_columns,), -1, dtype=torch.int32)
    factor, addend = torch.ones(layer.num_columns), torch.zeros(layer.num_columns)
    for part in parts:
        change = changes[part.module]
        rows = _arranged(part, change.up)
        up[: rows.shape[1], part.columns] = rows.T
        first[part.columns] = begins[part.module]
        if change.factor is not None:
            factor[part.columns] = _arranged(part, change.factor)
        addend[part.columns] = _addend(layer, part, change, factor[part.columns], reader)
    return AdapterWeights(
        torch.cat([change.down[:, parts[0].inputs] for change in changes.values()]),
        up,
        first,
        None if bool((factor == 1).all()) else factor,
        None if bool((addend == 0).all()) else addend,
    )


def _addend(
    layer: AdaptedLayer, part: AdaptedPart, change: _Change, factor: torch.Tensor, reader: TensorReader
) -> torch.Tensor:
    """The values added to outputs that have the base model's bias already, unless ranks are to be summed before it."""
    base = torch.zeros_like(factor)
    if layer.bias is not None:
        base = layer.bias[part.columns].float().cpu()
    elif change.new_bias is not None:
        name = reader.modules[part.module]["bias"]
        raise reader.refused(name, "the model has no bias there")
    # The factor is that of the product alone.
    added = torch.zeros_like(base) if layer.is_summed else (1 - factor) * base
    if layer.is_summed and part.inputs.start > 0:
        return added  # the first rank adds the rest
    if change.bias is not None:
        added = added + _arranged(part, change.bias)
    if change.new_bias is not None:
        added = added + _arranged(part, change.new_bias) - base
    return added


def _arranged(part: AdaptedPart, rows: torch.Tensor) -> torch.Tensor:
    """The outputs of a module that are here, in the layer's order."""
    mine = rows[part.outputs]
    return mine if part.arrange is None else part.arrange(mine.contiguous())


def _begins(changes: dict[str, _Change]) -> Iterator[tuple[str, int]]:
    """Where each module's ranks begin."""
    begin = 0
    for module, change in changes.items():
        yield module, begin
        begin += change.down.shape[0]
