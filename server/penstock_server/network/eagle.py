"""A head of EAGLE: a layer over hidden states of a model, each beside the embedding of the token behind it, with keys
and values of its own. Few heads have further layers, which are those of any decoder.

What it returns for a position stands for the hidden state of the next one, so that it goes on with its own.

P-EAGLE does not go on: it was trained to guess the next k tokens in one pass. With h the hidden states of the model at
position p, and t the last known token, the rows of that pass are

    (p, h_p, t), (p + 1, m, s), (p + 2, m, s) … (p + k - 1, m, s)

each of a position, hidden states and the token behind the position. m are hidden states that were learned
(`mask_hidden`), which go through the same norms and `fc` as those of the model, and s is a token of the vocabulary. A
row sees all that the model computed and the stand-ins before it, as causal attention does by itself. The first row
gives the logits of the token behind t, each further one those of the next. Keys and values of the stand-ins are those
of no token: the next pass begins at p + 1, and writes its own there.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from penstock_kernels import AdapterRows
from torch import nn

from penstock_server.architectures.spec import CacheShape, KvHeads, ModelFacts, ModelSpec
from penstock_server.files.eagle_folder import EagleFacts, EagleFolder
from penstock_server.files.parallel_head import MASK
from penstock_server.network.decoder import Decoder, DecoderLayer, Memory
from penstock_server.network.forward_input import ForwardInput, ReadRows, TapShape
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.layers.attention import Attention
from penstock_server.network.layers.embedding import VocabEmbedding
from penstock_server.network.layers.feed_forward import FeedForward
from penstock_server.network.layers.heads import query_key_value_rows, share_heads
from penstock_server.network.layers.linear import ColumnLinear, Rows
from penstock_server.network.layers.norm import Norm
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.rotary import Rotary, RotaryTable
from penstock_server.network.stage import WHOLE, Stage
from penstock_server.network.states import AnyShape
from penstock_server.network.weights import Has, Piece


class EagleHead(nn.Module):
    """A `Model` that also takes hidden states. Built on the meta device; `weights.load_weights` gives it memory."""

    state_shape: AnyShape | None = None
    stage: Stage = WHOLE
    abilities: tuple[str, ...] = ()
    capturable = True
    leaves_rows = True

    def __init__(
        self,
        folder: EagleFolder,
        token_ids: torch.Tensor | None,
        target: Decoder,
        placement: Placement,
        device: torch.device,
        max_sequence_len: int,
    ) -> None:
        """`token_ids`: the tokens that it knows, in its order; None: all."""
        super().__init__()
        spec, own = folder.spec, folder.checkpoint
        self.facts: ModelFacts = replace(spec, max_sequence_len=max_sequence_len)
        heads = share_heads(placement.group, spec.num_heads, spec.num_kv_heads)
        self.num_heads, self.dtype = heads.num_heads, placement.dtype
        self.cache_shape = CacheShape((KvHeads(heads.num_kv_heads, spec.head_dim),) * spec.num_layers)
        # The hidden states that it reads from the model, and those that it returns for the next position.
        self.reads = TapShape(folder.layers, target.spec.hidden_size)
        self.returns = TapShape((1,), spec.hidden_size)
        self.token_ids = token_ids
        size = (len(folder.layers) if folder.third else 2) * target.spec.hidden_size
        names = [f"fc_norm.{number}" for number in range(len(folder.layers))]
        facts = folder.third or EagleFacts()
        self.norm_output = facts.norm_output
        self.parallel = folder.parallel
        num_tokens = spec.vocab_size if token_ids is None else len(token_ids)
        with torch.device("meta"):
            self.fc = ColumnLinear(
                [[Rows("fc", spec.hidden_size, 0, spec.hidden_size)]], size, own.has("fc.bias"), placement
            )
            self.input_norm = Norm("input_norm", size, spec.norm, placement) if facts.norm_before_fc else None
            self.state_norms = nn.ModuleList(
                Norm(name, target.spec.hidden_size, spec.norm, placement) for name in names if facts.fc_norm
            )
            first = replace(spec, names=replace(spec.names, layer=folder.first_layer))
            self.layer: nn.Module = (
                DecoderLayer(first, 0, placement)
                if folder.third is None
                else _Layer(first, placement, facts.norm_before_residual)
            )
            self.more_layers = nn.ModuleList(
                DecoderLayer(spec, layer, placement) for layer in range(1, spec.num_layers)
            )
            self.mask = None if folder.parallel is None else _Mask(folder.parallel.mask_shape, placement)
            has_norm = folder.third is not None
            self.norm = (
                Norm(spec.names.final_norm, spec.hidden_size, spec.norm, placement) if has_norm else None
            )
            self.own_embedding = _vocabulary(own.has("embed_tokens.weight"), "embed_tokens", spec, placement)
            has_head = own.has("lm_head.weight")
            self.lm_head = _vocabulary(has_head, "lm_head", replace(spec, vocab_size=num_tokens), placement)
        self.rotary = Rotary(spec.ropes[0], max_sequence_len, device)
        # Functions, so that the model is no part of this one.
        self._embed = target.embedding.forward
        self._normed, self._scores = target.final_norm.forward, target.scores

    def prepare(self, states: torch.Tensor) -> torch.Tensor:
        """Hidden states of the model, those of a token side by side, as the first layer takes them."""
        if self.norm is None:
            return self._normed(states)
        if self.state_norms:
            parts = states.chunk(len(self.state_norms), dim=1)
            normed = [norm(part.contiguous()) for norm, part in zip(self.state_norms, parts, strict=True)]
            return self.fc(torch.cat(normed, dim=-1))  # type: ignore[no-any-return]
        return self.fc(states if self.input_norm is None else self.input_norm(states))  # type: ignore[no-any-return]

    @property
    def stand_in(self) -> torch.Tensor:
        """In the place of the hidden states of a token that is not known yet, as `prepare` takes them."""
        assert self.mask is not None, "only of a head that guesses several tokens at once"
        return self.mask.weight.view(1, -1)

    def forward(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """See `Model`."""
        assert inputs.given is not None, "a head takes hidden states"
        table = self.rotary.table(inputs.positions, self.dtype)
        embedding = self._embed if self.own_embedding is None else self.own_embedding
        embedded: torch.Tensor = embedding(inputs.token_ids)
        x: torch.Tensor
        residual: torch.Tensor
        memories = [Memory(layer, None, None) for layer in cache.layers]
        # The rows that each layer returns.
        returned = [*[None] * len(self.more_layers), inputs.read]
        if isinstance(self.layer, DecoderLayer):
            x = self.fc(torch.cat((embedded, inputs.given), dim=-1))
            residual = torch.zeros_like(x)
            x, residual = self.layer(x, residual, inputs, table, memories[0], read=returned[0])
        else:
            x, residual = self.layer(embedded, inputs.given, inputs, table, memories[0], returned[0])
        for layer, memory, read in zip(self.more_layers, memories[1:], returned[1:], strict=True):
            x, residual = layer(x, residual, inputs, table, memory, read=read)
        residual.add_(x)
        if inputs.taps is not None:
            inputs.taps.take(1, residual)
        return residual

    def following(self, hidden: torch.Tensor) -> torch.Tensor:
        """The hidden states given for the next position, from those returned for the last."""
        return hidden if not self.norm_output or self.norm is None else self.norm(hidden)

    def logits(self, hidden: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """See `Model`; a token that the head does not know has minus infinity."""
        normed = hidden if self.norm is None else self.norm(hidden)
        logits = self._scores(normed) if self.lm_head is None else self.lm_head.logits(normed)
        if self.token_ids is None:
            return logits
        found = torch.full((len(logits), self.facts.vocab_size), -torch.inf, device=logits.device)
        return found.index_copy_(1, self.token_ids, logits)


class _Mask(nn.Module):
    """Learned hidden states, side by side as they lie in the file."""

    weight: torch.Tensor

    def __init__(self, shape: tuple[int, ...], placement: Placement) -> None:
        super().__init__()
        self.register_buffer("weight", placement.empty(*shape))

    def pieces(self, has: Has) -> Iterator[Piece]:
        shape = tuple(self.weight.shape)
        whole = tuple(slice(0, size) for size in shape)
        yield Piece(MASK, shape, self, "weight", whole, whole)


class _Layer(nn.Module):
    """The first layer of the third version: attention reads embedding and hidden state side by side."""

    def __init__(self, spec: ModelSpec, placement: Placement, norms_residual: bool) -> None:
        super().__init__()
        prefix = spec.names.layer.format(0)
        self.norms_residual = norms_residual

        def norm(name: str) -> Norm:
            return Norm(prefix + name, spec.hidden_size, spec.norm, placement)

        self.embedding_norm = norm(spec.names.attention_input_norm)
        self.hidden_norm, self.mlp_norm = norm("hidden_norm"), norm(spec.names.mlp_input_norm)
        self.attention = Attention(spec, 0, placement)
        rows = query_key_value_rows(spec, prefix, self.attention.share)
        self.attention.qkv = ColumnLinear(rows, 2 * spec.hidden_size, spec.qkv_bias, placement)
        self.feed_forward = FeedForward(spec, 0, placement)

    def forward(
        self,
        embedded: torch.Tensor,
        given: torch.Tensor,
        inputs: ForwardInput,
        table: RotaryTable,
        memory: Memory,
        read: ReadRows | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The tensor that is still to be added to the residual sum, and this sum; `read`: of these rows only."""
        normed = self.hidden_norm(given)
        residual = (normed if self.norms_residual else given).clone()
        assert memory.cache is not None, "it has keys and values"
        both = torch.cat((self.embedding_norm(embedded), normed), dim=-1)
        attended = self.attention(both, inputs, table, memory.cache, read=read)
        residual = residual if read is None else residual.index_select(0, read.rows)
        x = self.mlp_norm(attended, residual)
        return self.feed_forward(x), residual


def _vocabulary(is_there: bool, name: str, spec: ModelSpec, placement: Placement) -> VocabEmbedding | None:
    sizes = (spec.vocab_size, spec.hidden_size)
    return VocabEmbedding(name, *sizes, placement, head=name) if is_there else None


def known_tokens(offsets: torch.Tensor) -> torch.Tensor:
    """The tokens that a head knows, of how far each is from its number."""
    return offsets + torch.arange(len(offsets))
