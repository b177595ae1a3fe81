"""Shared by all tests: tiny models, made once per session."""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

# It has a protobuf of its own inside, and beside those of the other libraries the process may crash when it ends. What
# needs it, as gguf says it does and a conversion really does, gets it in processes of their own.
sys.modules["sentencepiece"] = None  # type: ignore[assignment]

# Imported objects stay: a collector that looks at a million objects each time costs a fifth of the time until
# `pytest_collection_finish`.
gc.disable()

# Steps are tiny: threads would only wait for each other, and one thread makes sums the same in every batch.
torch.set_num_threads(1)

# Torch notes, at the first of these lines, which functions make tensors. Some tests replace such a function: if theirs
# were noted, all models that are loaded later in the process would have wrong positions.
with torch.device("cpu"):
    torch.empty(0)


# Files that take minutes.
_LONGEST = (
    "tests/e2e/test_traces.py",
    "tests/kernels/test_cases.py",
    "tests/server/test_capture.py",
    "tests/server/test_draft_traces.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These files come first: a worker that begins one of them last leaves the others without work."""
    order = {file: number for number, file in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))


def pytest_collection_finish() -> None:
    """Objects that are imported by now are never looked at again, which would cost minutes."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Where `make test` asks for them: the variants of kernels that shards launched in this process, in a file."""
    folder, recorder = os.environ.get("PENSTOCK_VARIANTS"), sys.modules.get("kernel_variants.recorder")
    if folder and recorder and recorder.SERVED:
        recorder.write(recorder.SERVED, Path(folder) / f"served-{os.getpid()}.txt")


class SavedModel(NamedTuple):
    """A model folder, and transformers' own model of it, the oracle."""

    folder: Path
    oracle: Any


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SavedModel]:
    """Makes a tiny model, once per recipe: `saved_model("llama", tie_word_embeddings=True)`."""
    import tiny_model  # with transformers, which not all processes that run tests need

    made: dict[str, SavedModel] = {}

    def make(family: str = "llama", max_shard_size: str = "5GB", **options: Any) -> SavedModel:
        key = repr((family, max_shard_size, sorted(options.items(), key=lambda item: item[0])))
        if key not in made:
            folder = tmp_path_factory.mktemp(family)
            recipe = tiny_model.TinyModel(family, options)
            made[key] = SavedModel(folder, tiny_model.save(folder, recipe, max_shard_size))
        return made[key]

    return make


@pytest.fixture(scope="session")
def made(saved_model: Callable[..., SavedModel], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a model of a quantized format, once, see `quantized_formats`."""
    from quantized_formats import making

    return making(saved_model, tmp_path_factory.mktemp)
