"""The adapters of a shard: those in the memory of the host, which of them are on the device, and which slots use them.

Adapters are loaded and unloaded by any thread. Slots are given theirs by the thread that steps, which also copies to
the device what is not there: the least recently used that no slot uses makes room.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock_server.base.errors import AdapterInUse, AdapterRefused, SlotRefused
from penstock_server.files.adapter.folder import open_adapter
from penstock_server.network.adapters import AdaptedModel, HostAdapter

logger = logging.getLogger(__name__)


# In the place of the number of an adapter.
NO_ADAPTER = -1
# No position comes so far.
_NEVER = 2**31


class AdapterUse(NamedTuple):
    """The number of a slot's adapter on the device, and the first position at which it acts."""

    number: int = NO_ADAPTER
    start: int = 0

    def acts_at(self, end: int) -> bool:
        """Whether it acts at some position before `end`."""
        return self.number != NO_ADAPTER and end > self.start


NO_USE = AdapterUse()


class Adapters:
    """All adapters of a shard; at most `max_adapters` are on the device."""

    def __init__(self, model: AdaptedModel, max_adapters: int) -> None:
        self.max_adapters = max_adapters if model.can_adapt else 0
        self._model = model
        self._loaded: dict[str, HostAdapter] = {}
        # Numbers on the device, the least recently used first; and those that no adapter has.
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._free = list(range(self.max_adapters))
        self._of_slot: dict[int, str] = {}
        # Guards all of these; it is never held while a folder is read.
        self._lock = threading.Lock()
        # One folder is read at a time.
        self._loading = threading.Lock()

    def load(self, path: Path, expected_id: str, name: str) -> HostAdapter:
        """Read a folder into the memory of the host, unless it is there. Raises AdapterRefused."""
        if self.max_adapters == 0:
            raise AdapterRefused("this model cannot carry adapters, or --max-loras is 0")
        with self._loading:
            begun = time.perf_counter()
            folder = open_adapter(path)
            if expected_id and folder.content_hash != expected_id:
                raise AdapterRefused(
                    f"{path}: its content has changed: it is {folder.content_hash}, not {expected_id}"
                )
            found = self._loaded.get(folder.content_hash)
            if found is not None:
                return found
            adapter = self._model.read(folder)
            with self._lock:
                self._loaded[adapter.adapter_id] = adapter
        logger.info(
            "adapter %s loaded in %.2f s: rank %d, %.1f MB",
            name or path.name, time.perf_counter() - begun, adapter.max_rank, adapter.num_bytes / 1e6,
        )  # fmt: skip
        return adapter

    def unload(self, adapter_id: str) -> None:
        """Free its memory. Raises AdapterInUse while a slot uses it."""
        with self._lock:
            if adapter_id in self._of_slot.values():
                raise AdapterInUse(f"adapter {adapter_id} is in use")
            self._loaded.pop(adapter_id, None)
            if adapter_id in self._numbers:
                self._leave_device(adapter_id)

    def admit(self, slot: int, adapter_id: str, prompt: Sequence[int]) -> AdapterUse:
        """How a slot uses its adapter, until it is retired.

        Raises SlotRefused where it is not loaded, or slots use all numbers.
        """
        with self._lock:
            adapter = self._loaded.get(adapter_id)
            if adapter is None:
                raise SlotRefused(f"adapter {adapter_id} is not loaded")
            number = self._numbers.get(adapter_id)
            if number is None:
                number = self._numbers[adapter_id] = self._free_number()
                self._model.place(number, adapter)
            self._numbers.move_to_end(adapter_id)
            self._of_slot[slot] = adapter_id
        return AdapterUse(number, _first_position(prompt, adapter.invocation))

    def retire(self, slot: int) -> None:
        """A slot needs its adapter no longer."""
        with self._lock:
            self._of_slot.pop(slot, None)

    @property
    def are_recordable(self) -> bool:
        """Whether decode steps with those on the device may be recorded."""
        return self._model.is_recordable

    def rehearse(self) -> None:
        """Launch all that adapters add to steps, for a context in which launches only compile."""
        if self.max_adapters:
            self._model.rehearse()

    def clear(self) -> None:
        """No slot is in use any more."""
        with self._lock:
            self._of_slot.clear()

    def forget(self) -> None:
        """Free the memory of all; no slot is in use any more."""
        with self._lock:
            self._of_slot.clear()
            for adapter_id in list(self._numbers):
                self._leave_device(adapter_id)
            self._loaded.clear()

    def _free_number(self) -> int:
        """A number that no adapter has any more."""
        if not self._free:
            used = set(self._of_slot.values())
            oldest = next((adapter_id for adapter_id in self._numbers if adapter_id not in used), None)
            if oldest is None:
                raise SlotRefused(f"slots use {self.max_adapters} adapters already, see --max-loras")
            self._leave_device(oldest)
        return self._free.pop()

    def _leave_device(self, adapter_id: str) -> None:
        number = self._numbers.pop(adapter_id)
        self._model.clear(number)
        self._free.append(number)


def _first_position(prompt: Sequence[int], invocation: tuple[int, ...]) -> int:
    """Where an adapter begins to act: at the last occurrence of its invocation; never, where there is none."""
    count = len(invocation)
    starts = range(len(prompt) - count, -1, -1) if count else (0,)
    return next((start for start in starts if tuple(prompt[start : start + count]) == invocation), _NEVER)
