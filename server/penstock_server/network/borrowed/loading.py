"""Fills a model of transformers with a checkpoint. Each of several ranks reads its own slices only.

transformers builds the model on the meta device and then takes the tensors of a checkpoint one by one, renaming and
converting as it must. It is given a model that is divided already, and tensors that read this rank's part only. Where
the checkpoint has other names for what is to be divided, each rank reads the whole model first.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from safetensors import safe_open

from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.network.borrowed.parallel import Window, divide, windows_of
from penstock_server.network.distributed import Group


def load_model(model_class: Any, config: Any, checkpoint: Checkpoint, group: Group, **options: Any) -> Any:
    """A model on the CPU, this rank's share of it. `options` are those of `from_pretrained`."""
    windows: dict[str, Window] = {}
    with _tensors(checkpoint, windows) as tensors:
        divided = model_class if group.size == 1 else _divided(model_class, checkpoint, group, windows)
        model, loaded = divided.from_pretrained(
            None, config=config, state_dict=tensors, output_loading_info=True, **options
        )
    _check(model, loaded, checkpoint)
    if group.size > 1 and not windows:
        divide(model, group)
    return model


def _divided(model_class: Any, checkpoint: Checkpoint, group: Group, windows: dict[str, Window]) -> Any:
    """The model class, divided when it is built, if the checkpoint has the divided tensors under the same names."""

    def build(model: Any, *arguments: Any, **options: Any) -> None:
        model_class.__init__(model, *arguments, **options)
        found = windows_of(model, group)
        if all(checkpoint.has(name) for name in found):
            divide(model, group)
            windows.update(found)

    # transformers finds conversions by the names of the class and its module.
    names = {
        "__init__": build,
        "__module__": model_class.__module__,
        "__qualname__": model_class.__qualname__,
    }
    return type(model_class.__name__, (model_class,), names)


class _Tensor:
    """A tensor of a file, which is read when it is indexed: all of it, or a rank's part."""

    def __init__(self, stored: Any, name: str, windows: dict[str, Window]) -> None:
        self._stored = stored
        self._name = name
        self._windows = windows

    def __getitem__(self, everything: Any) -> torch.Tensor:
        window = self._window()
        if window is None:
            whole: torch.Tensor = self._stored[everything]
            return whole
        before = (slice(None),) * window.dim
        part: torch.Tensor = self._stored[(*before, slice(window.start, window.stop))]
        return part

    def _window(self) -> Window | None:
        """A folder saved from a model without its head has names without their first part."""
        names = self._windows.items()
        return next((window for of, window in names if self._name in (of, of.partition(".")[2])), None)


@contextmanager
def _tensors(checkpoint: Checkpoint, windows: dict[str, Window]) -> Iterator[dict[str, _Tensor]]:
    with ExitStack() as stack:
        files = {entry.file for entry in checkpoint.entries.values()}
        opened = {file: stack.enter_context(safe_open(file, framework="pt")) for file in files}
        yield {
            name: _Tensor(opened[entry.file].get_slice(entry.name), name, windows)
            for name, entry in checkpoint.entries.items()
        }


def _check(model: Any, loaded: dict[str, Any], checkpoint: Checkpoint) -> None:
    folder, missing = checkpoint.folder, sorted(loaded["missing_keys"])
    if missing:
        raise StartError(f"{folder}: tensor {missing[0]} is in no safetensors file; download it again")
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise StartError(f"{folder}: tensor {name} holds numbers that are not finite")
