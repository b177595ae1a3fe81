"""The tensors of one step, as the model and the sampler take them. `staging` builds them."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from penstock_server.engine.exclusions import Exclusions
from penstock_server.engine.sampling_params import Feature, SamplingParams
from penstock_server.network.forward_input import ForwardInput


class SampledRow(NamedTuple):
    """One slot that gets a token: what the host knows of it without asking the device."""

    slot: int
    # Position of the new token: the length of the slot before it.
    position: int
    num_generated: int
    features: Feature
    params: SamplingParams
    # None where the slot excludes nothing.
    exclusions: Exclusions | None = None


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """The rows that sample in this step, and their columns on the device."""

    rows: list[SampledRow]
    slots: torch.Tensor  # [num_rows] int64
    lengths: torch.Tensor  # [num_rows] int64
    prompt_lens: torch.Tensor  # [num_rows] int64
    # Parameters and seeds are empty where no row has a feature.
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
    # First prompt token that gets one; the row of the position before predicts it.
    start: int
    # Rows of the hidden states: `first_row .. first_row + count`.
    first_row: int
    count: int
    # How many of the most likely tokens to report for each.
    num_top: int


@dataclass(frozen=True, slots=True)
class Step:
    """What the device computes for one plan."""

    # Exactly one is not None: what the model takes, or slots and positions [2, num_rows] for a decode graph.
    forward: ForwardInput | None
    decode: torch.Tensor | None
    num_spans: int
    sampled_rows: torch.Tensor  # [num_rows] int64, rows of the hidden states that predict a new token
    sampling: SamplingInput
    prompt_rows: list[PromptRows]

    @property
    def has_prompts(self) -> bool:
        """Whether any span has more than one token."""
        return self.forward is not None and len(self.forward.token_ids) > self.num_spans
