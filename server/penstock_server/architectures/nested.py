"""Keys that config.json has in an object of their own, such as those of attention in `attn_config`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Family, WrongValue


def lifted(family: Family, raw: dict[str, Any], outer: str, keys: Mapping[str, str]) -> Family:
    """The row for a config.json that has `keys`, ours and theirs, under `outer`, whose parts are joined by dots.

    Errors name the whole path. What is missing there is the row's default.
    """
    found = raw
    for number, part in enumerate(parts := outer.split(".")):
        inner = found.get(part)
        if not isinstance(inner, dict | None):
            raise WrongValue(".".join(parts[: number + 1]), inner, "an object")
        found = inner or {}
    written = {ours: found[theirs] for ours, theirs in keys.items() if found.get(theirs) is not None}
    aliases = {ours: f"{outer}.{theirs}" for ours, theirs in keys.items()}
    return replace(family, aliases={**family.aliases, **aliases}, defaults={**family.defaults, **written})
