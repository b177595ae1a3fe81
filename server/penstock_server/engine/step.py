"""The tensors of one step, as the model and the sampler take them. `staging` builds them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from penstock_server.engine.exclusions import Exclusions
from penstock_server.engine.sampling_params import Feature, SamplingParams
from penstock_server.engine.slot_table import Decodes
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.upload import to_device


class SampledRow(NamedTuple):
    """One position that gets a token: what the host knows of it without asking the device.

    A slot with drafts has several.
    """

    slot: int
    # Position of the new token: the length of the slot before it.
    position: int
    num_generated: int
    features: Feature
    params: SamplingParams
    # None where the slot excludes nothing.
    exclusions: Exclusions | None = None
    # The token that was drafted for this position: if another is chosen, the rows behind it do not count.
    draft: int | None = None
    # Drafts of the slot before it.
    num_drafts_before: int = 0

    @property
    def is_behind_draft(self) -> bool:
        """Whether the token before it is a draft."""
        return self.num_drafts_before > 0


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """The rows that sample in this step, and their columns on the device."""

    # One for each row, none in a step of `decodes`.
    rows: list[SampledRow]
    slots: torch.Tensor  # [num_rows] int64
    lengths: torch.Tensor  # [num_rows] int64
    prompt_lens: torch.Tensor  # [num_rows] int64
    # Parameters and seeds are empty where no row has a feature.
    params: torch.Tensor  # [num_rows, num_columns] float32; columns are `rows.Column`
    seeds: torch.Tensor  # [num_rows] int64, the bits of the unsigned seed
    # In the place of `rows`, where all are decodes; parameters and seeds are empty then.
    decodes: Decodes | None = None
    # The inputs of the decodes that are sampled apart.
    apart: "SamplingInput | None" = None

    @property
    def known_rows(self) -> list[SampledRow]:
        """The rows of which more is known than arrays hold."""
        return self.rows if self.apart is None else self.apart.rows

    @property
    def num_rows(self) -> int:
        """How many positions get a token."""
        return len(self.slots)

    def slots_on_host(self) -> set[int]:
        """The slots that get tokens."""
        return set(self.decodes.slots.tolist()) if self.decodes else {row.slot for row in self.rows}

    @property
    def num_top(self) -> int:
        """The most top tokens that any row asked for."""
        return max((row.params.num_top_logprobs for row in self.rows), default=0)

    @property
    def features(self) -> Feature:
        """The features that any row needs. Most need nothing, and arithmetic on flags is slow."""
        needed = Feature(0)
        for row in self.rows:
            if row.features:
                needed |= row.features
        return needed

    def part(self, numbers: Sequence[int]) -> "SamplingInput":
        """Only the rows with these numbers, which are known one by one."""
        index = to_device(list(numbers), torch.int64, self.slots.device)
        slots, lengths, prompt_lens = (
            column.index_select(0, index) for column in (self.slots, self.lengths, self.prompt_lens)
        )
        # Where no row has a feature these are empty.
        params, seeds = (
            column.index_select(0, index) if len(column) else column for column in (self.params, self.seeds)
        )
        rows = [self.rows[number] for number in numbers]
        return SamplingInput(rows, slots, lengths, prompt_lens, params, seeds)

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


class PaddedSpans(NamedTuple):
    """The spans of a step for a graph of `prompt_graphs`: slots, starts and lengths, [3, num_spans] int64, of which the
    last may be of the spare row, and have none."""

    numbers: torch.Tensor
    num_tokens: int
    # Of each row that is read: its number, its slot and its position, [3, num_read] int64; None: all rows are.
    read: torch.Tensor | None


class TreeRows(NamedTuple):
    """The rows of a step that has trees: the position of each, and which places it sees, as `AttentionSpans.tree`."""

    positions: torch.Tensor  # [num_rows] int64
    seen: torch.Tensor  # [num_rows] int64


@dataclass(frozen=True, slots=True)
class Step:
    """The work of the device for one plan."""

    # Exactly one is not None: what the model takes, or slots and positions for a decode graph, [2, num_rows], of which
    # the first `num_tokens` are those of the spans, with a third row, the adapters, where a row uses one; or the spans.
    forward: ForwardInput | None
    decode: torch.Tensor | None
    padded: PaddedSpans | None
    num_spans: int
    num_tokens: int
    sampled_rows: torch.Tensor  # [num_rows] int64, rows of the hidden states that predict a new token
    sampling: SamplingInput
    prompt_rows: list[PromptRows]
    # [num_tokens] int64: the rows in which states behind the tokens of `decode` are kept; None: none are.
    kept: torch.Tensor | None = None
    # None where nothing is drafted, or only chains; else the second row of `decode` has places.
    tree: TreeRows | None = None

    @property
    def leaves_rows(self) -> bool:
        """Whether the model returns hidden states only for the tokens that are read."""
        given = self.forward if self.padded is None else self.padded
        return given is not None and given.read is not None

    @property
    def has_prompts(self) -> bool:
        """Whether any span has more than one token and is not part of a decode graph: a part of a prompt, or drafts."""
        return self.decode is None and self.num_tokens > self.num_spans
