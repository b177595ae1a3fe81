"""Log probabilities of prompt tokens, which need the logits of every one of them."""

import torch
from penstock_kernels import AdapterRows

from penstock_server.engine.sampling import Scored, score
from penstock_server.engine.step import PromptRows
from penstock_server.network.model import Model

# At most so many rows are computed at a time.
_ROWS_AT_A_TIME = 128


def score_prompt(
    model: Model, tokens: torch.Tensor, hidden: torch.Tensor, rows: PromptRows, adapters: AdapterRows | None
) -> Scored:
    """Score these rows of the hidden states. tokens: the slots' [num_slots, max_sequence_len]."""
    targets = tokens[rows.slot, rows.start : rows.start + rows.count].long()
    states = hidden[rows.first_row : rows.first_row + rows.count]
    used = None if adapters is None else adapters[rows.first_row : rows.first_row + rows.count]
    scored = []
    for row in range(0, rows.count, _ROWS_AT_A_TIME):
        part = slice(row, row + _ROWS_AT_A_TIME)
        logits = model.logits(states[part], None if used is None else used[part])
        scored.append(score(logits, targets[part], rows.num_top))
    return Scored(*(torch.cat(column) for column in zip(*scored, strict=True)))
