"""Which layers of a model have a sliding window or chunks, and which rotate, from config.json."""

from penstock_server.architectures.family import RotatingLayers, Windows
from penstock_server.architectures.fields import Fields

LAYER_KINDS = ("full_attention", "sliding_attention")


def read_windows(fields: Fields, windows: Windows | None, num_layers: int) -> tuple[int | None, ...]:
    """Per layer: how many positions a query sees; None is all."""
    # Zero is how some configs write that there is none.
    if windows is None or not fields.get("sliding_window"):
        return (None,) * num_layers
    if windows.switch_key and not fields.fact(windows.switch_key):
        return (None,) * num_layers
    window = fields.integer("sliding_window")
    slides = _named_layers(fields, num_layers) or _regular_layers(fields, windows, num_layers)
    return tuple(window if is_sliding else None for is_sliding in slides)


def read_rotating_layers(fields: Fields, layers: RotatingLayers | None, num_layers: int) -> tuple[bool, ...]:
    """Per layer: whether queries and keys are rotated."""
    if layers is None:
        return (True,) * num_layers
    listed = fields.of_layers(layers.key, (0, 1), num_layers)
    if listed is None:
        interval = fields.integer(layers.interval_key, default=layers.interval)
        return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    return tuple(bool(flag) for flag in listed)


def read_chunks(fields: Fields, key: str, rotates: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Per layer: how long the chunks are that a query sees its own of; None: there are none."""
    if not key or fields.get(key) is None:
        return (None,) * len(rotates)
    chunk = fields.integer(key)
    kinds = fields.of_layers("layer_types", ("full_attention", "chunked_attention"), len(rotates))
    if kinds is None:
        return tuple(chunk if rotated else None for rotated in rotates)
    return tuple(chunk if kind == "chunked_attention" else None for kind in kinds)


def _named_layers(fields: Fields, num_layers: int) -> list[bool]:
    kinds = fields.of_layers("layer_types", LAYER_KINDS, num_layers) or []
    return [kind == "sliding_attention" for kind in kinds]


def _regular_layers(fields: Fields, windows: Windows, num_layers: int) -> list[bool]:
    every = windows.full_every
    if every:
        every = fields.integer(windows.pattern_key, default=every)
    first = fields.integer(windows.first_key, default=num_layers, low=0) if windows.first_key else 0
    end = fields.integer(windows.end_key, default=num_layers, low=0) if windows.end_key else num_layers
    ahead = 0 if windows.full_first else 1
    return [
        first <= layer < end and not (every and (layer + ahead) % every == 0) for layer in range(num_layers)
    ]
