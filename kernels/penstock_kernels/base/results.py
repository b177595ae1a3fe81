"""Results of the ops that return several tensors."""

from typing import NamedTuple

import torch


class Routes(NamedTuple):
    """The experts of every token, best first: [num_tokens, top_k] float32 and int64."""

    weights: torch.Tensor
    expert_ids: torch.Tensor


class Decodes(NamedTuple):
    """The inputs of a decode step. Spans are rows, or joined rows; behind the last of these are some without rows."""

    token_ids: torch.Tensor  # [num_rows] int64
    cache_positions: torch.Tensor  # [num_rows] int64, `block * block_size + offset`
    context_lens: torch.Tensor  # [num_rows] int32, of each span, its tokens included
    block_tables: torch.Tensor  # [num_rows, max_blocks] int32, of each span
    # [num_rows + 1] int32, the first row of each span; None where every row is a span.
    query_starts: torch.Tensor | None


class FoundSpans(NamedTuple):
    """The inputs of a step of spans. Rows behind the last span are those of the spare slot."""

    token_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    cache_positions: torch.Tensor  # [num_tokens] int64, `block * block_size + offset`
    query_starts: torch.Tensor  # [num_spans + 1] int32, the first row of each span, and the end of the last
    context_lens: torch.Tensor  # [num_spans] int32, of each span, its tokens included; 0 where it has none
    block_tables: torch.Tensor  # [num_spans, max_blocks] int32; entries past the context may be anything


class Logprobs(NamedTuple):
    """Chosen tokens [num_rows] int64 and their log probabilities [num_rows] float32, whether all logits of a row are
    finite [num_rows], and the most likely tokens [num_rows, num_top] int64 and float32, best first."""

    token_ids: torch.Tensor
    chosen: torch.Tensor
    finite: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
