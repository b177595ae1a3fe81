"""Which layers of a model have a sliding window, from config.json."""

from penstock_server.architectures.family import Windows
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


def _named_layers(fields: Fields, num_layers: int) -> list[bool]:
    kinds = fields.get("layer_types")
    if kinds is None:
        return []
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or any(kind not in LAYER_KINDS for kind in kinds)
    ):
        expected = f"{' or '.join(LAYER_KINDS)} for each of the {num_layers} layers"
        raise fields.error("layer_types", kinds, expected)
    return [kind == "sliding_attention" for kind in kinds]


def _regular_layers(fields: Fields, windows: Windows, num_layers: int) -> list[bool]:
    every = windows.full_every
    if every:
        every = fields.integer(windows.pattern_key, default=every)
    first = fields.integer(windows.first_key, default=num_layers, low=0) if windows.first_key else 0
    end = fields.integer(windows.end_key, default=num_layers, low=0) if windows.end_key else num_layers
    return [first <= layer < end and not (every and (layer + 1) % every == 0) for layer in range(num_layers)]
