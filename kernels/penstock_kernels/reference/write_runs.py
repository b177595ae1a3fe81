"""Many short writes into one flat buffer of integers."""

import torch


def write_runs(target: torch.Tensor, values: torch.Tensor, runs: torch.Tensor, max_len: int) -> None:
    # A kernel's grid needs `max_len`; here the lengths themselves are read.
    first_values, first_places, lengths = runs.long().unbind(dim=1)
    run_of = torch.arange(len(runs), device=runs.device).repeat_interleave(lengths)
    offsets = torch.arange(len(run_of), device=runs.device) - (lengths.cumsum(0) - lengths)[run_of]
    target[first_places[run_of] + offsets] = values[first_values[run_of] + offsets]
