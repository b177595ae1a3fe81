"""Our paged attention as transformers' attention interface calls it, and what it must know of the current step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from penstock_kernels import Scoring, store_kv

from penstock_server.architectures.spec import CacheShape, KvHeads
from penstock_server.network.borrowed.base import base_of
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.layers.attention import attend

# The name of our function in transformers' interface.
ATTENTION = "penstock"
_LAYER_KINDS = ("full_attention", "sliding_attention")


class HeadShape(NamedTuple):
    """The heads of one layer on this rank: numbers of query and key heads, and sizes of keys and values."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(slots=True)
class CurrentStep:
    """The input of every layer's attention beside its arguments. One model runs one step at a time."""

    # Type of queries, keys and values, whatever the type of the cache.
    dtype: torch.dtype
    inputs: ForwardInput | None = None
    cache: KVCache | None = None
    # By layer, found by a run without a cache.
    shapes: dict[int, HeadShape] = field(default_factory=dict)

    @property
    def num_heads(self) -> int:
        """The most query heads of a layer, on this rank."""
        return max(shape.num_heads for shape in self.shapes.values())

    @contextmanager
    def of(self, inputs: ForwardInput, cache: KVCache) -> Iterator[None]:
        """While a step is computed."""
        self.inputs, self.cache = inputs, cache
        try:
            yield
        finally:
            self.inputs = self.cache = None


def paged(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_others: Any,
) -> tuple[torch.Tensor, None]:
    """query: [1, num_heads, num_tokens, head_dim]; key and value likewise. Result: [1, num_tokens, num_heads, dim]."""
    step: CurrentStep = module.penstock_step
    if attention_mask is not None or position_bias is not None:
        raise ValueError("its attention has a mask of its own")
    if step.inputs is None or step.cache is None:
        step.shapes[module.layer_idx] = HeadShape(query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    layer = step.cache.layers[module.layer_idx]
    dim = layer.key.shape[3]
    heads = [_rows(part, dim, step.dtype) for part in (query, key, value)]
    store_kv(heads[1], heads[2], layer.key, layer.value, step.inputs.cache_positions, *layer.scale)
    scoring = Scoring(
        query.shape[3] ** -0.5 if scaling is None else scaling,
        sliding_window or module.penstock_window,
        softcap,
        None if s_aux is None else s_aux.float().contiguous(),
    )
    attended = attend(heads[0], layer, step.inputs, scoring)
    return attended[None, :, :, : value.shape[3]], None


def _rows(heads: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """[num_tokens, heads, dim]: smaller heads are filled up with zeros, which change no product."""
    rows = heads[0].transpose(0, 1).to(dtype)
    return F.pad(rows, (0, dim - rows.shape[2])).contiguous()


@torch.inference_mode()
def prepare(model: Any, step: CurrentStep) -> CacheShape:
    """Give every attention layer the step, and find the shape of the cache by running two tokens through the model."""
    config = model.config
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and not set(kinds) <= set(_LAYER_KINDS):
        raise ValueError(f"it has layers of {', '.join(sorted(set(kinds) - set(_LAYER_KINDS)))}")
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int):
            module.penstock_step = step
            module.penstock_window = _window(module, config, kinds, layer)
    ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    base_of(model)(input_ids=ids, position_ids=torch.arange(2, device=model.device)[None], use_cache=False)
    return _shape(step, config.num_hidden_layers)


def _window(module: Any, config: Any, kinds: list[str] | None, layer: int) -> int | None:
    """Some models use a layer's window for the mask only, which we do not use."""
    if kinds is not None:
        return getattr(config, "sliding_window", None) if kinds[layer] == "sliding_attention" else None
    return getattr(module, "sliding_window", None) or getattr(config, "sliding_window", None)


def _shape(step: CurrentStep, num_layers: int) -> CacheShape:
    if sorted(step.shapes) != list(range(num_layers)):
        raise ValueError("not every layer calls the attention interface")
    shapes = step.shapes.values()
    kv_heads = {shape.num_kv_heads for shape in shapes}
    if len(kv_heads) != 1:
        raise ValueError("its layers differ in key heads")
    dim = max(max(shape.key_dim, shape.value_dim) for shape in shapes)
    return CacheShape((KvHeads(kv_heads.pop(), dim),) * num_layers)
