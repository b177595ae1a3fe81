"""A rank that fails in a pass takes part in the sums that are left, with as many rows as the others have there."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from penstock_server.base.errors import StepFailed
from penstock_server.engine.step_pact import StepPact
from penstock_server.network.distributed import Group, Made
from penstock_server.network.forward_input import ForwardInput, ReadRows, Taps

_SIZE = 8


class Sums:
    """Stands for the ranks: notes the shape of every sum. The other rank never fails."""

    size = 2

    def __init__(self) -> None:
        self.made: list[Made] | None = None
        self.shapes: list[tuple[int, ...]] = []

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(x.shape))
        if self.made is not None:
            self.made.append(Made(self.all_reduce, x.shape, x.dtype))
        return x

    def gather_numbers(self, *numbers: int) -> list[tuple[int, ...]]:
        return [numbers, (0,)]


def inputs_of(num_tokens: int, num_read: int, is_tapped: bool) -> ForwardInput:
    ids = torch.zeros(num_tokens, dtype=torch.int64)
    taps = Taps((1,), torch.empty(1, num_tokens, _SIZE)) if is_tapped else None
    read = ReadRows(torch.zeros(num_read, dtype=torch.int64), cast(Any, SimpleNamespace()))
    return cast(ForwardInput, SimpleNamespace(token_ids=ids, read=read, taps=taps))


def passing(sums: Sums, rows: Sequence[int], fails_before: int | None = None) -> Callable[[], torch.Tensor]:
    """A pass with a sum over each of these numbers of rows."""

    def compute() -> torch.Tensor:
        for number, count in enumerate(rows):
            if number == fails_before:
                raise torch.OutOfMemoryError("injected")
            sums.all_reduce(torch.ones(count, _SIZE))
        return torch.ones(rows[-1], _SIZE)

    return compute


@pytest.mark.parametrize("fails_before", [0, 1, 2])
@pytest.mark.parametrize("is_tapped", [False, True])
def test_passes_that_leave_hidden_states_compute_other_rows(is_tapped: bool, fails_before: int) -> None:
    sums = Sums()
    pact = StepPact(cast(Group, sums), torch.device("cpu"), lambda error: None)
    # Who reads the last layer's hidden states keeps it from leaving rows.
    rows = {False: [6, 6, 2], True: [6, 6, 6]}
    for kind in (True, False):
        pact.run_pass(passing(sums, rows[kind]), inputs_of(6, 2, kind))
    sums.shapes.clear()
    with pytest.raises(StepFailed):
        pact.run_pass(passing(sums, rows[is_tapped], fails_before), inputs_of(6, 2, is_tapped))
    assert sums.shapes == [(count, _SIZE) for count in rows[is_tapped]]
