"""The state of every slot on the device: a row of int32 words each, so that one write applies a whole plan.

    block table | seed | sampling parameters | tokens

There is one spare row behind the last slot, with a block of its own: it pads a step of fixed size.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from penstock_kernels import write_runs
from penstock_kernels.native.choose import SlotRows

from penstock_server.base.errors import StartError
from penstock_server.engine.limits import Limits
from penstock_server.engine.plan import Admit, Appends, Numbers
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.network.upload import copy_to_device, to_device

_LARGEST_BUFFER = 2**31
Words = np.ndarray[Any, np.dtype[np.int32]]


class Column(IntEnum):
    """Columns of `Rows.params`; the first are those of `SlotRows`.

    A top_k that float32 cannot hold exactly is beyond any vocabulary.
    """

    TEMPERATURE = 0
    TOP_K = 1
    TOP_P = 2
    MIN_P = 3
    TYPICAL_P = 4
    REPETITION_PENALTY = 5
    FREQUENCY_PENALTY = 6
    PRESENCE_PENALTY = 7
    WATERMARK_DELTA = 8
    WATERMARK_GAMMA = 9


class Rows:
    """The rows, and the changes that are not written yet."""

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self.device = device
        self.spare = limits.num_slots
        # A seed has two words and is read as one number: it begins at an even column, and rows have even widths.
        self._first_seed = limits.max_blocks + limits.max_blocks % 2
        first_param = self._first_seed + 2
        self._first_token = first_param + len(Column)
        self._width = self._first_token + limits.max_sequence_len + limits.max_sequence_len % 2
        self._buffer = _allocate(limits, self._width, device)
        # The same memory as a numpy array, which starts faster; None where it is not on the host.
        self._here = self._buffer.numpy() if device.type == "cpu" else None
        self.block_table = self._buffer[:, : limits.max_blocks]
        self.seeds = self._buffer[:, self._first_seed : first_param].view(torch.int64).squeeze(1)
        self.params = self._buffer[:, first_param : self._first_token].view(torch.float32)
        self.tokens = self._buffer[:, self._first_token : self._first_token + limits.max_sequence_len]
        self.kept = SlotRows(self.tokens, self.params, self.seeds)
        self.no_seeds, self.no_params = self.seeds[:0], self.params[:0]
        self.block_table[self.spare] = limits.num_blocks
        # Changes that are not written yet.
        self._values: list[Numbers] = []
        self._runs: list[Numbers] = []
        self._num_values = 0

    def admit(self, admit: Admit) -> None:
        """Write a sequence's tokens, blocks and parameters at the next flush."""
        self._write(admit.slot, self._first_token, admit.token_ids)
        self._write(admit.slot, self._first_seed, _words(admit.sampling))
        self.append(admit.slot, 0, admit.block_ids)

    def write_tokens(self, slot: int, position: int, token_ids: Sequence[int]) -> None:
        """Write tokens of a slot from a position on, at the next flush at the latest."""
        if self._here is not None:
            begin = self._first_token + position
            self._here[slot, begin : begin + len(token_ids)] = token_ids
        else:
            self._write(slot, self._first_token + position, list(token_ids))

    def known_tokens(self, lengths: Mapping[int, int]) -> dict[int, Numbers]:
        """The first tokens of some slots, so many of each, on the host; waits for the device, once for all."""
        if not lengths:
            return {}
        if self._here is not None:
            first = self._first_token
            return {slot: self._here[slot, first : first + length] for slot, length in lengths.items()}
        slots = to_device(list(lengths), torch.int64, self.device)
        rows = self.tokens[:, : max(lengths.values())].index_select(0, slots).cpu().numpy()
        return {slot: row[:length] for row, (slot, length) in zip(rows, lengths.items(), strict=True)}

    def append(self, slot: int, first: int, block_ids: list[int]) -> None:
        """Write blocks after the `first` blocks that a slot has, at the next flush."""
        self._write(slot, first, block_ids)

    def append_all(self, appends: Appends, firsts: Numbers) -> None:
        """Does what `append` does, for several slots."""
        begins = self._num_values + appends.counts.cumsum() - appends.counts
        runs = np.stack([begins, appends.slots * self._width + firsts, appends.counts], axis=1)
        self._add(runs, appends.blocks)

    def token_ids(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The tokens of these slots at these positions, int64."""
        return self.tokens[slots, positions].long()

    def flush(self) -> None:
        """Write all changes since the last flush."""
        if not self._runs:
            return
        runs, values = np.concatenate(self._runs), np.concatenate(self._values)
        self._runs, self._values, self._num_values = [], [], 0
        if self._here is not None:
            self._write_here(self._here.reshape(-1), runs, values)
            return
        # One upload: the runs, then their values.
        numbers = torch.from_numpy(np.concatenate([runs.ravel(), values]).astype(np.int32))
        sent = copy_to_device(numbers, self.device)
        written = sent[: runs.size].view(-1, 3)
        write_runs(self._buffer.view(-1), sent[runs.size :], written, int(runs[:, 2].max()))

    @staticmethod
    def _write_here(words: Words, runs: Numbers, values: Numbers) -> None:
        """Does what `write_runs` does without PyTorch, whose ops would take most of a decode step's fixed time."""
        begins, places, lengths = runs.T
        # Values are in the order of their runs.
        targets = np.arange(len(values)) + np.repeat(places - begins, lengths)
        words[targets] = values

    def _write(self, slot: int, column: int, words: list[int]) -> None:
        if words:
            run = (self._num_values, slot * self._width + column, len(words))
            self._add(np.array([run]), np.array(words))

    def _add(self, runs: Numbers, values: Numbers) -> None:
        """Runs of [begin among the values, place, length], with their values."""
        self._runs.append(runs)
        self._values.append(values)
        self._num_values += len(values)


def buffer_bytes(limits: Limits) -> int:
    """Approximate size of the rows."""
    return (limits.num_slots + 1) * (limits.max_sequence_len + limits.max_blocks + 64) * 4


def _allocate(limits: Limits, width: int, device: torch.device) -> torch.Tensor:
    num_rows = limits.num_slots + 1
    if num_rows * width >= _LARGEST_BUFFER:
        raise StartError(
            f"--max-batch-size {limits.num_slots} with --max-total-tokens {limits.max_sequence_len} is more than a "
            f"shard can hold: their product must stay below {_LARGEST_BUFFER}"
        )
    return torch.zeros(num_rows, width, dtype=torch.int32, device=device)


def _words(params: SamplingParams) -> list[int]:
    """Seed and parameters as words of a row."""
    columns = [float(getattr(params, column.name.lower())) for column in Column]
    return list(
        struct.unpack(f"={2 + len(Column)}i", struct.pack(f"=Q{len(Column)}f", params.seed, *columns))
    )
