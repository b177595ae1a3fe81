"""A model computed by the code of transformers with the caches of transformers, one for each slot.

For models that do not attend through the interface, or keep more than keys and values: states of recurrent layers, keys
of an index, compressed blocks. Spans are computed one after another.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from penstock_kernels import AdapterRows, AttentionSpans
from transformers import DynamicCache

from penstock_server.architectures.recurrent_spec import KeptShape
from penstock_server.architectures.spec import CacheShape
from penstock_server.network.borrowed.adapted import BorrowedLinears
from penstock_server.network.borrowed.model import BorrowedFacts, BorrowedModel
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.states import KeptStates

# The names that classes give their cache, where they take it and give it back: transformers 5.24 has the first.
_NAMES = ("cache", "past_key_values", "cache_params", "state")
# The lengths of two sequences that show how a cache grows.
_SHORT, _LONG = 24, 48


class Way(NamedTuple):
    """How spans are computed that follow what is kept."""

    # Some classes add where they stand to what they are told.
    tells_positions: bool
    # Some begin again where several tokens follow.
    one_by_one: bool


# The best first.
WAYS = (Way(True, False), Way(False, False), Way(True, True))


class KeptModel(BorrowedModel):
    """A borrowed model with the same two methods; the cache of the engine holds nothing."""

    abilities = ("transformers", "recurrent")

    def __init__(self, model: Any, facts: BorrowedFacts, linears: BorrowedLinears) -> None:
        super().__init__(model, facts, linears)
        self.attention = _set_attention(model)
        taken = inspect.signature(self.base.forward).parameters
        self.name = _name_of_cache(taken)
        self.takes_positions = "position_ids" in taken
        # Most classes make their cache themselves, some of a class of their own.
        self.is_made = False
        self.way = WAYS[0]
        # Nobody else attends.
        self.num_heads = 1
        self.cache_shape, self.state_shape = self._measure()

    def forward(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """Hidden states after the last norm, [num_tokens, hidden_size]; what the slots keep is changed."""
        states, spans = cache.states, inputs.spans
        assert isinstance(states, KeptStates), "as it is told by the shape"
        assert isinstance(spans, AttentionSpans), "such steps are not recorded"
        parts, begin = torch.split(inputs.token_ids, list(spans.query_lens)), 0
        found: list[torch.Tensor] = []
        for slot, ids, end in zip(inputs.slots.tolist(), parts, spans.context_lens, strict=True):
            if end == len(ids):
                states.forget([slot])
            used = None if inputs.adapters is None else inputs.adapters[begin : begin + len(ids)]
            found += self._span(states, slot, ids, end - len(ids), used)
            begin += len(ids)
        return torch.cat(found)

    def _span(
        self, states: KeptStates, slot: int, ids: torch.Tensor, start: int, adapters: AdapterRows | None
    ) -> Iterator[torch.Tensor]:
        """Hidden states of a span, in one part or several. adapters: of its tokens."""
        size = 1 if self.way.one_by_one and start else len(ids)
        for begin, part in zip(range(0, len(ids), size), torch.split(ids, size), strict=True):
            used = None if adapters is None else adapters[begin : begin + size]
            with self.linears.rows.of(len(part), used):
                hidden, states.of_slot[slot] = self._compute(part, start, states.of_slot.get(slot))
            start += len(part)
            yield hidden

    def _compute(self, ids: torch.Tensor, start: int, kept: Any) -> tuple[torch.Tensor, Any]:
        """Tokens from position `start` on. `kept`: None at the beginning."""
        if kept is None and self.is_made:
            kept = DynamicCache(config=self.model.config)
        options = {} if kept is None else {self.name: kept}
        if self.way.tells_positions and self.takes_positions:
            options["position_ids"] = torch.arange(start, start + len(ids), device=ids.device)[None]
        output = self.base(input_ids=ids[None], use_cache=True, **options)
        # Some change what they are given, and do not give it back.
        return output.last_hidden_state[0], getattr(output, self.name, None) or kept

    @torch.inference_mode()
    def _measure(self) -> tuple[CacheShape, KeptShape]:
        """The bytes that a slot keeps for each position, and those that it keeps whatever its length."""
        self.is_made = self._kept_of(1) is None
        short, long = (self._bytes_of(length) for length in (_SHORT, _LONG))
        if not long:
            raise ValueError("it keeps nothing between two steps")
        each = -(-max(long - short, 0) // (_LONG - _SHORT))
        return CacheShape((), kept_bytes=each), KeptShape(max(long - each * _LONG, 0))

    def _bytes_of(self, length: int) -> int:
        # Some tensors are a part of a larger one, which stays.
        return sum(tensor.untyped_storage().nbytes() for tensor in _tensors(self._kept_of(length), set()))

    def _kept_of(self, length: int) -> Any:
        ids = torch.arange(length, device=self.model.device) % self.facts.vocab_size
        return self._compute(ids, 0, None)[1]


def _set_attention(model: Any) -> str:
    """The fastest that the class has without our interface."""
    for name in ("sdpa", "eager"):
        try:
            model.set_attn_implementation(name)
        except (ImportError, ValueError):
            continue
        return name
    raise ValueError("it has no attention but its own")


def _name_of_cache(taken: Mapping[str, Any]) -> str:
    found = next((name for name in _NAMES if name in taken), None)
    if found is None:
        raise ValueError("it takes no cache")
    return found


def _tensors(kept: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """All tensors of an object and of what it holds."""
    if id(kept) in seen:
        return
    seen.add(id(kept))
    if isinstance(kept, torch.Tensor):
        yield kept
    elif isinstance(kept, dict):
        for part in kept.values():
            yield from _tensors(part, seen)
    elif isinstance(kept, (list, tuple)):
        for part in kept:
            yield from _tensors(part, seen)
    elif hasattr(kept, "__dict__"):
        yield from _tensors(vars(kept), seen)
