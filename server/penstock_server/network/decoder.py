"""The one decoder: what a `ModelSpec` describes, over a paged cache and the states of slots. Families are data; none
has code here."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from penstock_kernels import AdapterRows, AttentionSpans, DecodeSpans, InputNorm, RecurrentSpans, soft_cap
from torch import nn

from penstock_server.architectures.spec import CacheShape, KvHeads, LayerSpec, ModelFacts, ModelSpec
from penstock_server.network.forward_input import ForwardInput, ReadRows
from penstock_server.network.kv_cache import KVCache, LayerCache
from penstock_server.network.layers.attention import Attention
from penstock_server.network.layers.beside_experts import FeedForwardBesideExperts
from penstock_server.network.layers.embedding import PositionEmbedding, UnitHead, VocabEmbedding
from penstock_server.network.layers.feed_forward import FeedForward
from penstock_server.network.layers.heads import share_heads
from penstock_server.network.layers.indexer import Indexer
from penstock_server.network.layers.latent_attention import LatentAttention
from penstock_server.network.layers.layer_scale import LayerScale
from penstock_server.network.layers.linear import ColumnLinear
from penstock_server.network.layers.moe import Experts, SparseFeedForward
from penstock_server.network.layers.norm import Norm, place_ones
from penstock_server.network.layers.own_inputs import OwnInput, OwnInputs
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.recurrent import RecurrentLayer, recurrent_layer, state_shape
from penstock_server.network.layers.rotary import Rotary, RotaryTable
from penstock_server.network.states import AnyShape, LayerState, States
from penstock_server.network.upload import to_device

# The word in Describe for a model with states: a sequence cannot go on from blocks alone.
RECURRENT = "recurrent"


class Memory(NamedTuple):
    """The memory of one layer for the sequences of a step: keys and values, states, or both."""

    cache: LayerCache | None
    state: LayerState | None
    # None where no layer has a state.
    spans: RecurrentSpans | None


class DecoderLayer(nn.Module):
    """A mixer of tokens and feed-forward with norms before or after them; `residual` is the sum, updated in place.

    The mixer is attention, a recurrent layer, or both side by side; a layer may also lack it, or the feed-forward.

    What a layer returns is still to be added to the sum: the next norm does both in one pass. With several ranks both
    parts may leave a rank's share of what is to be added, where the norm behind it can add up the shares, too.
    """

    # Whether what it returns is such a share.
    leaves_share = False

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        spec, kind = spec.at(layer), spec.layers[layer]
        names, prefix = spec.names, spec.names.layer.format(layer)

        def norm(name: str, is_used: bool) -> Norm | None:
            return Norm(prefix + name, spec.hidden_size, spec.norm, placement) if name and is_used else None

        self.parallel = spec.parallel
        self.multiplier = spec.residual_multiplier
        self.factors = spec.factors
        self.has_mixer = kind.has_attention or kind.is_recurrent
        self.attention_input_norm = norm(names.attention_input_norm, self.has_mixer)
        attention = Attention if spec.latent is None else LatentAttention
        self.attention = attention(spec, layer, placement) if kind.has_attention else None
        self.recurrent: RecurrentLayer | None = (
            recurrent_layer(spec, layer, placement) if kind.is_recurrent else None
        )
        self.attention_output_norm = norm(names.attention_output_norm, self.has_mixer)
        self.mlp_input_norm = norm(names.mlp_input_norm, kind.has_feed_forward)
        self.feed_forward = _feed_forward(spec, layer, placement) if kind.has_feed_forward else None
        self.mlp_output_norm = norm(names.mlp_output_norm, kind.has_feed_forward)
        given = spec.layer_inputs
        self.own_input = None if given is None else OwnInput(spec, given, prefix, placement)
        self.scale = (
            LayerScale(prefix + names.layer_scale, spec.hidden_size, placement)
            if spec.scales_layers
            else None
        )
        self.group = placement.group
        self.mixer_leaves_share = (
            self.mlp_input_norm is not None and not self.parallel and self._leave_share_of_mixer()
        )

    def _leave_share_of_mixer(self) -> bool:
        """Have the mixer leave a share, if nothing but the norm comes between it and the sum; whether it does."""
        is_last = self.recurrent is None and self.factors.attention_out == 1.0 and self.multiplier == 1.0
        if not is_last or self.attention is None or self.attention_output_norm is not None:
            return False
        return self.attention.output.leave_share()

    def leave_share(self, behind: "DecoderLayer") -> None:
        """From now on return a share, if nothing but the first norm behind comes between it and the sum."""
        has_norm = behind.has_mixer and behind.attention_input_norm is not None
        if self.feed_forward is None or self.parallel or self.multiplier != 1.0 or not has_norm:
            return
        is_last = self.mlp_output_norm is None and self.own_input is None and self.scale is None
        self.leaves_share = is_last and self.feed_forward.leave_share()

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        inputs: ForwardInput,
        rotary: RotaryTable | None,
        memory: Memory,
        is_share: bool = False,
        own: torch.Tensor | None = None,
        read: ReadRows | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What is still to be added to the residual sum, and this sum; `read`: of these rows only.

        `is_share`: x is one of this rank, whose sum over all ranks is still to be added. `own`: this layer's part of
        `OwnInputs`, for the rows that it returns.
        """
        x, residual = self._parts(x, residual, inputs, rotary, memory, is_share, read)
        if self.own_input is not None:
            assert own is not None, "the model makes it"
            x = self.own_input(residual.add_(x), own, _returned(inputs, read).adapters)
        return x if self.scale is None else self.scale(x, residual), residual

    def _parts(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        inputs: ForwardInput,
        rotary: RotaryTable | None,
        memory: Memory,
        is_share: bool,
        read: ReadRows | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        adapters = _returned(inputs, read).adapters
        if self.has_mixer:
            first = self.attention_input_norm, self._product_of_mixer
            mixed, norm = self._normed(*first, x, residual, inputs.adapters, is_share)
            is_share = self.mixer_leaves_share
            mixture = self._mix(mixed, inputs, rotary, memory, norm, read)
            if read is not None:
                residual = residual.index_select(0, read.rows)
                mixed = mixed.index_select(0, read.rows) if self.parallel else mixed
            x = self._scaled(mixture, self.attention_output_norm, adapters)
            if self.parallel and self.feed_forward is not None:
                own = self.mlp_input_norm
                both = mixed if own is None else own(residual, adapters=adapters)
                fed = self._scaled(self.feed_forward(both, adapters), self.mlp_output_norm, adapters)
                return x + fed, residual
        return self._fed(x, residual, adapters, is_share), residual

    def _fed(
        self, x: torch.Tensor, residual: torch.Tensor, adapters: AdapterRows | None, is_share: bool
    ) -> torch.Tensor:
        """What the feed-forward makes of the sum with x, which it is still to be added to."""
        if self.feed_forward is None:
            return x
        product = self.feed_forward.up if isinstance(self.feed_forward, FeedForward) else None
        x, norm = self._normed(self.mlp_input_norm, product, x, residual, adapters, is_share)
        if norm is not None:
            return self._scaled(self.feed_forward(x, None, norm), self.mlp_output_norm, None)
        if isinstance(self.feed_forward, FeedForwardBesideExperts):
            return self._scaled(self.feed_forward(x, residual, adapters), self.mlp_output_norm, adapters)
        return self._scaled(self.feed_forward(x, adapters), self.mlp_output_norm, adapters)

    @property
    def _product_of_mixer(self) -> ColumnLinear | None:
        """The only product of what the norm before the mixer gives."""
        is_only = self.recurrent is None and not self.parallel and self.factors.attention_in == 1.0
        return self.attention.qkv if is_only and isinstance(self.attention, Attention) else None

    def _folded(
        self,
        norm: Norm | None,
        product: ColumnLinear | None,
        x: torch.Tensor,
        residual: torch.Tensor,
        adapters: AdapterRows | None,
    ) -> InputNorm | None:
        """A norm that its product does, if that is done at once; None: it is still to be computed."""
        if norm is None or product is None or not product.can_fuse(x, adapters):
            return None
        return norm.folded(residual)

    def _normed(
        self,
        norm: Norm | None,
        product: ColumnLinear | None,
        x: torch.Tensor,
        residual: torch.Tensor,
        adapters: AdapterRows | None,
        is_share: bool,
    ) -> tuple[torch.Tensor, InputNorm | None]:
        """The norm of the sum with x; or x as it is, and the norm that its product does."""
        folded = self._folded(norm, product, x, residual, adapters)
        if folded is None:
            return _add_and_norm(norm, x, residual, adapters, is_share), None
        return (self.group.all_reduce(x) if is_share else x), folded

    def _mix(
        self,
        x: torch.Tensor,
        inputs: ForwardInput,
        rotary: RotaryTable | None,
        memory: Memory,
        norm: InputNorm | None,
        read: ReadRows | None,
    ) -> torch.Tensor:
        """`norm`: of x, if it is still to be done. `read`: the rows to return; None: all."""
        if self.recurrent is None and isinstance(self.attention, Attention):
            found = x if norm is not None else _times(x, self.factors.attention_in)
            attended = self.attention(found, inputs, rotary, memory.cache, norm, read)
            return _times(attended, self.factors.attention_out)
        assert norm is None, "a product does it only for attention alone"
        all_rows = self._mix_all(x, inputs, rotary, memory)
        return all_rows if read is None else all_rows.index_select(0, read.rows)

    def _mix_all(
        self, x: torch.Tensor, inputs: ForwardInput, rotary: RotaryTable | None, memory: Memory
    ) -> torch.Tensor:
        """Where the mixer is more than attention to keys and values, or something else."""
        found: torch.Tensor | None = None
        if self.attention is not None:
            found = _times(x, self.factors.attention_in)
            found = _times(self.attention(found, inputs, rotary, memory.cache), self.factors.attention_out)
        if self.recurrent is not None:
            kept: torch.Tensor = self.recurrent(x, inputs.adapters, memory.state, memory.spans)
            found = kept if found is None else found + kept
        assert found is not None, "a mixer is one of the two, or both"
        return found

    def _scaled(self, x: torch.Tensor, norm: Norm | None, adapters: AdapterRows | None) -> torch.Tensor:
        """The output of a part as it is added to the residual sum."""
        return _times(x if norm is None else norm(x, adapters=adapters), self.multiplier)


def _feed_forward(
    spec: ModelSpec, layer: int, placement: Placement
) -> FeedForward | SparseFeedForward | FeedForwardBesideExperts:
    if not spec.layers[layer].is_sparse:
        return FeedForward(spec, layer, placement)
    beside = spec.moe is not None and spec.moe.beside_dense
    return (FeedForwardBesideExperts if beside else SparseFeedForward)(spec, layer, placement)


def _returned(inputs: ForwardInput, read: ReadRows | None) -> ForwardInput:
    """The inputs of the rows that a layer returns."""
    return inputs if read is None else read.inputs


def _times(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x if factor == 1.0 else x * factor


def _add_and_norm(
    norm: Norm | None,
    x: torch.Tensor,
    residual: torch.Tensor,
    adapters: AdapterRows | None,
    is_share: bool,
) -> torch.Tensor:
    if norm is None:
        assert not is_share, "shares are left to norms"
        return residual.add_(x)
    normed: torch.Tensor = norm(x, residual, adapters, is_share)
    return normed


class Decoder(nn.Module):
    """A model, this rank's share of the layers of its stage. Built on the meta device; `weights.load_weights` gives it
    memory. What other stages have stays there: it says which names and shapes the model has."""

    embedding: VocabEmbedding
    positions: PositionEmbedding | None
    embedding_norm: Norm | None
    final_norm: Norm
    # None: the embedding is the head, too.
    lm_head: VocabEmbedding | None
    own_inputs: OwnInputs | None

    def __init__(
        self,
        spec: ModelSpec,
        placement: Placement,
        device: torch.device,
        max_sequence_len: int | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.group, self.stage = placement.group, placement.stage
        # The next stage takes all of them.
        self.leaves_rows = self.stage.is_last
        self.facts: ModelFacts = spec
        heads = share_heads(placement.group, spec.num_heads, spec.num_kv_heads)
        self._numbers = self.stage.layers(spec.num_layers)
        self.kinds = spec.layers[self._numbers.start : self._numbers.stop]
        self.num_heads = heads.num_heads
        keeping = [
            number
            for number, kind in zip(self._numbers, self.kinds, strict=True)
            if kind.has_cache or kind.is_recurrent
        ]
        # Behind this layer, rows that nobody reads are of no use.
        self._last_keeping = max(keeping, default=-1)
        num_recurrent = sum(kind.is_recurrent for kind in self.kinds)
        self.cache_shape = self._cache_shape(spec, placement)
        self.state_shape: AnyShape | None = state_shape(spec, num_recurrent, placement.group)
        self.abilities: tuple[str, ...] = () if self.state_shape is None else (RECURRENT,)
        self._device = device
        self.dtype = placement.dtype
        # The modules of other stages.
        self.elsewhere: list[nn.Module] = []
        with torch.device("meta"):
            self._add_vocabulary(spec, placement)
            self._add_layers([DecoderLayer(spec, layer, placement) for layer in range(spec.num_layers)])
            self._add_norms(spec, placement)
        if spec.slopes is not None:
            first, end = heads.first_head, heads.first_head + heads.num_heads
            slopes = torch.tensor(spec.slopes[first:end], dtype=torch.float32).to(device)
            for module in self.modules():
                if isinstance(module, Attention):
                    module.slopes = slopes
        place_ones(self, device)
        self.served_len = max_sequence_len or spec.max_sequence_len
        self.rotaries = [Rotary(rope, self.served_len, device) for rope in spec.ropes]
        # Rounded to the type of the weights, as in training.
        self.embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=placement.dtype))

    def _cache_shape(self, spec: ModelSpec, placement: Placement) -> CacheShape:
        """The cache shape of the layers that are here and keep keys and values, or latents."""
        kept = [number for number in self._numbers if spec.layers[number].has_cache]
        if spec.latent is not None:
            latents, index = KvHeads(1, spec.latent.rank + spec.latent.rope_dim), spec.latent.index
            heads = []
            for number in kept:
                heads.append(latents)
                if index is not None and spec.layers[number].index_source is None:
                    heads.append(KvHeads(1, index.dim))
            return CacheShape(tuple(heads), num_tensors=1)
        totals = (spec.kv_heads[number] for number in kept)
        return CacheShape(
            tuple(
                KvHeads(share_heads(placement.group, spec.num_heads, total.number).num_kv_heads, total.dim)
                for total in totals
            )
        )

    def _add_vocabulary(self, spec: ModelSpec, placement: Placement) -> None:
        names, size = spec.names, (spec.vocab_size, spec.hidden_size)
        tied_head = names.lm_head if spec.tied_embeddings else ""
        embedding = VocabEmbedding(names.embedding, *size, placement, head=tied_head)
        is_head_here = self.stage.has_head and spec.tied_embeddings
        self._add("embedding", embedding, self.stage.is_first or is_head_here)
        positions = None
        if names.positions:
            num_positions = (spec.max_sequence_len, spec.hidden_size)
            positions = PositionEmbedding(names.positions, *num_positions, placement, spec.position_offset)
        self._add("positions", positions, self.stage.is_first)
        lm_head = None
        if not spec.tied_embeddings:
            head = UnitHead if spec.unit_head else VocabEmbedding
            lm_head = head(names.lm_head, *size, placement, spec.head_bias, names.lm_head)
        self._add("lm_head", lm_head, self.stage.has_head)
        own_inputs = None if spec.layer_inputs is None else OwnInputs(spec, spec.layer_inputs, placement)
        self._add("own_inputs", own_inputs, self.stage.is_first)

    def _add_layers(self, layers: list[DecoderLayer]) -> None:
        first, end = self._numbers.start, self._numbers.stop
        for layer, behind in pairwise(layers[first:end]):
            layer.leave_share(behind)
        self.layers = nn.ModuleList(layers[first:end])
        self.elsewhere += layers[:first] + layers[end:]

    def _add_norms(self, spec: ModelSpec, placement: Placement) -> None:
        def norm(name: str) -> Norm | None:
            return Norm(name, spec.hidden_size, spec.norm, placement) if name else None

        self._add("embedding_norm", norm(spec.names.embedding_norm), self.stage.is_first)
        self._add("final_norm", norm(spec.names.final_norm), self.stage.has_head)

    def _add(self, name: str, module: nn.Module | None, is_here: bool) -> None:
        """An attribute; what is elsewhere is none of PyTorch's, which would find it among the modules of this one."""
        if is_here or module is None:
            setattr(self, name, module)
        else:
            object.__setattr__(self, name, module)
            self.elsewhere.append(module)

    @property
    def capturable(self) -> bool:
        """See `Model`. On CUDA, experts of few bits and an index may need lengths or counts on the host."""
        asking = (module for module in self.modules() if isinstance(module, Experts | Indexer))
        return all(module.captures(self._device) for module in asking)

    def forward(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """See `Model`."""
        tables = self._tables(inputs)
        taps = inputs.taps
        leaves_rows = taps is None or taps.of_read or max(taps.layers) <= self._last_keeping
        read = inputs.read if leaves_rows else None
        x = self._embed(inputs) if inputs.received is None else inputs.received
        residual = torch.zeros_like(x)
        own = None if self.own_inputs is None else self.own_inputs(inputs.token_ids, x, inputs.adapters)
        caches = iter(cache.layers)
        # By layer.
        kept: dict[int | None, LayerCache] = {}
        chosen: dict[int, DecodeSpans | None] = {}
        states = iter(cache.states.layers if isinstance(cache.states, States) else ())
        spans = None if cache.states is None else _recurrent_spans(inputs)
        is_share: bool = False
        for number, layer, kind in zip(self._numbers, self.layers, self.kinds, strict=True):
            if taps is not None:
                # Who reads them reads sums.
                x, is_share = (self.group.all_reduce(x) if is_share else x), False
                taps.take(number, residual, x)
            if kind.has_cache:
                kept[number] = next_cache(caches, self.spec, kind, chosen)
            memory = Memory(
                kept[number if kind.has_cache else kind.kv_source] if kind.has_attention else None,
                next(states) if kind.is_recurrent else None,
                spans,
            )
            table = None if kind.rope is None else tables[kind.rope]
            leaving = read if number == self._last_keeping else None
            if leaving is not None and own is not None:
                own = own.index_select(0, leaving.rows)
            own_part = None if own is None else own[:, number]
            x, residual = layer(x, residual, inputs, table, memory, is_share, own_part, leaving)
            is_share = bool(layer.leaves_share)
            if leaving is not None:
                inputs, tables = leaving.inputs, self._tables(leaving.inputs)
        residual.add_(x)
        returned = inputs.of_read(residual)
        if taps is not None:
            taps.take(self._numbers.stop, returned if taps.of_read else residual)
        return returned

    def _tables(self, inputs: ForwardInput) -> list[RotaryTable]:
        return [rotary.table(inputs.positions, self.dtype) for rotary in self.rotaries]

    def _embed(self, inputs: ForwardInput) -> torch.Tensor:
        x: torch.Tensor = self.embedding(inputs.token_ids, inputs.adapters)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        if self.embedding_norm is not None:
            x = self.embedding_norm(x, adapters=inputs.adapters)
        return x if self.positions is None else x + self.positions(inputs.positions)

    def logits(self, hidden: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """[num_rows, hidden_size] to [num_rows, vocab_size] in float32. `adapters`: as in `ForwardInput`.

        [num_rows, 0] in a stage that has no head.
        """
        if not self.stage.is_last:
            return hidden[:, :0].float()
        return self.scores(self.final_norm(hidden, adapters=adapters), adapters)

    def scores(self, normed: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """The logits of hidden states behind the last norm."""
        head = self.embedding if self.lm_head is None else self.lm_head
        logits = head.logits(normed, adapters)
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        cap = self.spec.logit_soft_cap
        return logits if cap is None else soft_cap(logits, cap)


def next_cache(
    caches: Iterator[LayerCache],
    spec: ModelSpec,
    kind: LayerSpec,
    chosen: dict[int, DecodeSpans | None],
) -> LayerCache:
    """The cache of the next layer, with the keys of its index where it has one. `chosen`: as in `LayerCache`."""
    cache = next(caches)
    if spec.latent is None or spec.latent.index is None:
        return cache
    key = next(caches).key if kind.index_source is None else None
    return cache._replace(index_key=key, chosen=chosen)


def _recurrent_spans(inputs: ForwardInput) -> RecurrentSpans:
    """Which states the spans continue; those that begin at position 0 begin with none."""
    if inputs.recurrent is not None:
        return inputs.recurrent
    spans = inputs.spans
    if not isinstance(spans, AttentionSpans):
        return RecurrentSpans(inputs.slots, inputs.positions == 0, (1,) * len(inputs.positions))
    if len(spans.query_lens) == len(inputs.positions):
        return RecurrentSpans(inputs.slots, inputs.positions == 0, spans.query_lens)
    firsts = to_device(spans.query_starts[:-1], torch.int64, inputs.slots.device)
    return RecurrentSpans(inputs.slots, inputs.positions[firsts] == 0, spans.query_lens)
