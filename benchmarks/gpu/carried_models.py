"""A plugin of pytest for the bare machine: the tiny models that `pack` made, where there is no transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.gpu.origin import CARRIED


class SavedModel(NamedTuple):
    """A model folder."""

    folder: Path


def folder_name(family: str, options: dict[str, Any]) -> str:
    """The folder name of a carried model: its family, and the options that differ from the defaults."""
    return "-".join([family, *(f"{name}-{value}" for name, value in sorted(options.items()))])


@pytest.fixture(scope="session")
def saved_model() -> Callable[..., SavedModel]:
    """The folder of a carried model; skips where this one is not carried."""

    def find(family: str = "llama", **options: Any) -> SavedModel:
        folder = CARRIED / "models" / folder_name(family, options)
        if not folder.exists():
            pytest.skip(f"{folder.name} is not carried")
        return SavedModel(folder)

    return find
