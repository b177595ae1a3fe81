"""Which tokens a slot must not choose: all but an allow list, and those that would complete a banned sequence.

Both lie on the device from the admission of the slot on: an allow list has a bit for each token of the vocabulary, and
the last tokens of a slot are known on the device only. What is excluded follows from the tokens of the slot alone, so
preemption and replay do not change it.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.network.upload import copy_to_device, to_device

# Before the first token of a sequence that is shorter than others: any token may stand there.
_ANY = -1
# In place of a token that is not of the output: no sequence has it.
_NOT_GENERATED = -2


@dataclass(frozen=True, slots=True)
class Exclusions:
    """The exclusions of one slot; None where it has none of that kind."""

    # [ceil(vocab_size / 32)] int32, one bit per token, least significant first.
    allowed: torch.Tensor | None
    # [num_sequences, longest] int32: a banned sequence per row, at its end.
    banned: torch.Tensor | None


class Histories(NamedTuple):
    """Where the tokens of some rows are: `tokens` is [num_slots, max_sequence_len], all others [num_rows] int64."""

    tokens: torch.Tensor
    slots: torch.Tensor
    lengths: torch.Tensor
    prompt_lens: torch.Tensor


def exclusions_of(params: SamplingParams, device: torch.device) -> Exclusions:
    """The exclusions that checked parameters ask for."""
    return Exclusions(
        allowed=_words(params.allowed_mask, device) if params.allowed_mask else None,
        banned=_table(params, device) if params.banned_lens else None,
    )


def ban(scores: torch.Tensor, rows: torch.Tensor, tables: list[torch.Tensor], histories: Histories) -> None:
    """Set scores to -inf, in place, where a token would complete a banned sequence of its row.

    rows: [num_rows] int64, the rows of `scores` that have tables and histories.
    """
    width = max(table.shape[1] for table in tables)
    sequences = torch.cat([pad(table, (width - table.shape[1], 0), value=_ANY) for table in tables])
    owners = to_device(
        [owner for owner, table in enumerate(tables) for _ in range(len(table))], torch.int64, scores.device
    )
    before, last = sequences[:, :-1], sequences[:, -1].long()
    recent = _recent(histories, width - 1)
    is_next = ((recent[owners] == before) | (before == _ANY)).all(dim=1)
    # Several sequences may end with the same token, so that the values are added up.
    values = torch.zeros(len(sequences), device=scores.device).masked_fill(is_next, -torch.inf)
    scores.index_put_((rows[owners], last), values, accumulate=True)


def _recent(histories: Histories, count: int) -> torch.Tensor:
    """The last `count` generated tokens of each row, [num_rows, count]."""
    offsets = torch.arange(-count, 0, device=histories.lengths.device)
    positions = histories.lengths[:, None] + offsets
    tokens = histories.tokens[histories.slots[:, None], positions.clamp(min=0)]
    return tokens.masked_fill(positions < histories.prompt_lens[:, None], _NOT_GENERATED)


def _words(mask: bytes, device: torch.device) -> torch.Tensor:
    padded = bytearray(mask + bytes(-len(mask) % 4))
    return copy_to_device(torch.frombuffer(padded, dtype=torch.int32), device)


def _table(params: SamplingParams, device: torch.device) -> torch.Tensor:
    longest = max(params.banned_lens)
    ends = accumulate(params.banned_lens)
    rows = [
        [_ANY] * (longest - length) + list(params.banned_ids[end - length : end])
        for length, end in zip(params.banned_lens, ends, strict=True)
    ]
    return to_device(rows, torch.int32, device)
