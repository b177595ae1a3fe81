"""Packs many short examples into rows of one length, without attention between them.

A batch depends only on the seed and the step, so that training can be interrupted and resumed.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from demo.corpus import examples
from demo.corpus.example import Example
from demo.text import Encoded, encode

WIDTHS = (128, 256, 768)


class Chunk(NamedTuple):
    """Rows of one width: input ids, attention mask, and the targets with their positions."""

    ids: torch.Tensor  # [rows, width]
    visible: torch.Tensor  # [rows, 1, width, width], bool
    positions: torch.Tensor  # [targets], into the flattened rows
    targets: torch.Tensor  # [targets], the token after each position


def _rows(examples: list[Encoded], width: int) -> list[list[Encoded]]:
    """First fit, longest first."""
    rows: list[tuple[int, list[Encoded]]] = []
    for example in sorted(examples, key=lambda e: -len(e.ids)):
        size = len(example.ids)
        for i, (room, row) in enumerate(rows):
            if size <= room:
                row.append(example)
                rows[i] = room - size, row
                break
        else:
            rows.append((width - size, [example]))
    return [row for _, row in rows]


def _chunk(rows: list[list[Encoded]], width: int) -> Chunk:
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    owner = torch.full((len(rows), width), -1)
    learnt = torch.zeros(len(rows), width, dtype=torch.bool)
    for r, row in enumerate(rows):
        start = 0
        for number, example in enumerate(row):
            end = start + len(example.ids)
            ids[r, start:end] = torch.tensor(example.ids)
            learnt[r, start:end] = torch.tensor(example.learnt)
            owner[r, start:end] = number
            start = end
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    visible = (owner[:, :, None] == owner[:, None, :]) & causal
    targets = learnt.flatten().nonzero().squeeze(1)
    return Chunk(ids, visible[:, None], targets - 1, ids.flatten()[targets])


def batch(
    tokenizer: Tokenizer,
    seed: int,
    step: int,
    tokens: int,
    source: Callable[[int], Iterator[Example]] = examples,
) -> list[Chunk]:
    """About `tokens` tokens of fresh examples, in one chunk per width. `source`: examples of a seed."""
    drawn: list[Encoded] = []
    total = 0
    for example in source(seed * 1_000_003 + step):
        encoded = encode(tokenizer, example)
        if len(encoded.ids) > WIDTHS[-1]:
            continue
        drawn.append(encoded)
        total += len(encoded.ids)
        if total >= tokens:
            break
    by_width: dict[int, list[Encoded]] = {width: [] for width in WIDTHS}
    for encoded in drawn:
        by_width[next(w for w in WIDTHS if len(encoded.ids) <= w)].append(encoded)
    return [_chunk(_rows(them, width), width) for width, them in by_width.items() if them]
