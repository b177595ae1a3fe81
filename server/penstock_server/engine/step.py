"""The tensors of one step, as the model and the sampler take them. Built by `slots`, in one place."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from penstock_server.engine.plan import Feature, SamplingParams
from penstock_server.network.forward_input import ForwardInput


class SampledRow(NamedTuple):
    """One slot that gets a token: what the host knows of it without asking the device."""

    slot: int
    # Position of the new token, which is the slot's length before.
    position: int
    num_generated: int
    features: Feature
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """The rows that sample in this step, and their columns on the device."""

    rows: list[SampledRow]
    slots: torch.Tensor  # [num_rows] int64
    lengths: torch.Tensor  # [num_rows] int64
    prompt_lens: torch.Tensor  # [num_rows] int64
    # Of no rows where none has a feature: nothing reads them then.
    params: torch.Tensor  # [num_rows, num_columns] float32; columns are `rows.Column`
    seeds: torch.Tensor  # [num_rows] int64, the bits of the unsigned seed

    @property
    def features(self) -> Feature:
        """What any row needs. Most need nothing, and arithmetic on flags is slow."""
        needed = Feature(0)
        for row in self.rows:
            if row.features:
                needed |= row.features
        return needed

    def having(self, feature: Feature) -> list[int]:
        """Numbers of the rows that need a feature."""
        return [number for number, row in enumerate(self.rows) if feature in row.features]


@dataclass(frozen=True, slots=True)
class PromptRows:
    """A span whose prompt log probabilities were asked for."""

    slot: int
    # First prompt token that gets one; the hidden row before it predicts it.
    start: int
    # Rows of the hidden states: `first_row .. first_row + count`.
    first_row: int
    count: int
    # How many of the most likely tokens to tell beside each.
    num_top: int


@dataclass(frozen=True, slots=True)
class Step:
    """One plan's work on the device."""

    # Exactly one of the two: what the model takes, or slots and positions [2, num_rows] for a step of fixed size.
    forward: ForwardInput | None
    decode: torch.Tensor | None
    num_spans: int
    sampled_rows: torch.Tensor  # [num_rows] int64, rows of the hidden states that predict a new token
    sampling: SamplingInput
    prompt_rows: list[PromptRows]
