"""Which keys and values the layers of a model have, where these are not all alike."""

from typing import Any, NamedTuple

from penstock_server.architectures.family import Family
from penstock_server.architectures.fields import Fields
from penstock_server.architectures.spec import KvHeads
from penstock_server.base.errors import StartError

# Where transformers 5 writes what single layers have.
_OF_LAYERS = "per_layer_config"
_MAX_DIM = 1024


class KvLayer(NamedTuple):
    """The keys and values of one layer, as in `LayerSpec`."""

    heads: KvHeads | None = None
    source: int | None = None
    values_are_keys: bool = False


def read_kv_layers(
    fields: Fields, family: Family, usual: KvHeads, windows: tuple[int | None, ...]
) -> tuple[KvLayer, ...]:
    """Per layer; `usual`: heads of the model, `windows`: as in `LayerSpec`."""
    sources = _sources(fields, family, windows)
    if family.full_heads is None:
        return tuple(KvLayer(source=source) for source in sources)
    values_are_keys = fields.fact(family.full_values_are_keys)
    full = _full_heads(fields, family.full_heads, usual, values_are_keys)
    listed = _listed(fields, len(windows))

    def heads_of(number: int) -> KvHeads:
        if listed is None:
            return full if windows[number] is None else usual
        own = listed.get(number)
        return usual if own is None else _own_heads(fields, own, usual)

    heads = [heads_of(number) for number in range(len(windows))]
    for number, source in enumerate(sources):
        if source is not None and heads[number] != heads[source]:
            expected = f"the heads of layer {source}, whose keys layer {number} reads"
            raise fields.error(_OF_LAYERS, heads[number], expected)
    return tuple(
        KvLayer(None if own == usual else own, source, values_are_keys and window is None)
        for own, source, window in zip(heads, sources, windows, strict=True)
    )


def _listed(fields: Fields, num_layers: int) -> dict[int, Any] | None:
    """The settings of single layers, by number; None where nothing is written, not even that all are alike."""
    listed = fields.get(_OF_LAYERS)
    if listed is None:
        return None
    expected = f"an object with numbers of layers below {num_layers} as keys"
    if not isinstance(listed, dict):
        raise fields.error(_OF_LAYERS, listed, expected)
    # Numbers are written with as many digits as the largest one.
    found = {
        int(key): own for key, own in listed.items() if key.isascii() and key.isdecimal() and len(key) < 5
    }
    if len(found) < len(listed) or max(found, default=0) >= num_layers:
        raise fields.error(_OF_LAYERS, listed, expected)
    return found


def _full_heads(fields: Fields, keys: tuple[str, str], usual: KvHeads, values_are_keys: bool) -> KvHeads:
    number = fields.integer(keys[0], default=usual.number) if values_are_keys else usual.number
    return KvHeads(number, fields.integer(keys[1], default=usual.dim, high=_MAX_DIM))


def _own_heads(fields: Fields, own: Any, usual: KvHeads) -> KvHeads:
    if not isinstance(own, dict):
        raise fields.error(_OF_LAYERS, own, "an object for each layer")
    inner = Fields(own, fields.path)
    return KvHeads(
        inner.integer("num_key_value_heads", default=usual.number),
        inner.integer("head_dim", default=usual.dim, high=_MAX_DIM),
    )


def _sources(fields: Fields, family: Family, windows: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The layer whose keys and values each reads: the last of its kind before those that have none."""
    if family.kv_readers is None:
        return (None,) * len(windows)
    key = family.kv_readers[0]
    readers = fields.integer(key, default=0, low=0, high=len(windows))
    first = len(windows) - readers

    def source(layer: int) -> int | None:
        if layer < first:
            return None
        alike = (other for other in reversed(range(first)) if windows[other] == windows[layer])
        found = next(alike, None)
        if found is None:
            raise fields.error(key, readers, f"fewer: layer {layer} has none of its kind before these")
        return found

    return tuple(source(layer) for layer in range(len(windows)))


def check_heads(fields: Fields, num_heads: int, layers: tuple[KvLayer, ...]) -> None:
    """Raise StartError where queries cannot be divided among key heads, or a head does not rotate."""
    for layer in layers:
        if layer.heads is None:
            continue
        if num_heads % layer.heads.number:
            names = fields.name("num_attention_heads"), fields.name("num_key_value_heads")
            raise StartError(
                f"{fields.path}: {names[0]} {num_heads} is no multiple of {names[1]} {layer.heads.number}"
            )
        if layer.heads.dim % 2:
            raise fields.error("head_dim", layer.heads.dim, "an even number")


def read_index_sources(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """The layer whose index chooses for each; None: its own. GLM-5 names every layer, or says how they follow."""
    kinds = fields.get("indexer_types")
    if kinds is None:
        kinds = _kinds_of_index(fields, num_layers)
    known = ("full", "shared")
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise fields.error("indexer_types", kinds, f"full or shared for each of the {num_layers} layers")
    if kinds[0] == "shared":
        raise fields.error("indexer_types", kinds, "full for the first layer")
    own = [layer for layer, kind in enumerate(kinds) if kind == "full"]
    return tuple(
        None if kind == "full" else max(source for source in own if source < layer)
        for layer, kind in enumerate(kinds)
    )


def _kinds_of_index(fields: Fields, num_layers: int) -> Any:
    pattern = fields.get("index_topk_pattern")
    if isinstance(pattern, str):
        return [{"F": "full", "S": "shared"}.get(letter) for letter in pattern]
    if pattern is not None:
        return pattern
    every = fields.integer("index_topk_freq", default=1)
    offset = fields.integer("index_skip_topk_offset", default=2, low=0)
    return ["shared" if max(layer - offset + 1, 0) % every else "full" for layer in range(num_layers)]
