"""Sampling of a batch of rows. A row's result depends on nothing but that row."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require
from penstock_kernels.base.results import Logprobs
from penstock_kernels.base.sampling_params import DrawParams, PenaltyParams


def draw(scores: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """Draw one token per row: temperature, top-k, top-p, min-p, typical-p in this order, then Gumbel noise.

    scores: [num_rows, vocab_size] float32, -inf where a token is not allowed. Result: [num_rows] int64. A token on a
    threshold is kept, with all that equal it. The noise is a function of seed, position and token id.
    """
    _check_scores("draw", scores)
    for name, values in params._asdict().items():
        _check_row("draw", name, values, scores.shape[0])
    return table.draw(scores, params)


def most_likely(scores: torch.Tensor) -> torch.Tensor:
    """The token with the largest score of each row, the first of equal ones. scores: [num_rows, vocab_size] float32;
    result: [num_rows] int64."""
    _check_scores("most_likely", scores)
    return table.most_likely(scores)


def penalize(scores: torch.Tensor, params: PenaltyParams, max_len: int) -> None:
    """Apply repetition, frequency and presence penalties, in place. max_len: the longest of the lengths."""
    _check_scores("penalize", scores)
    for name, values in params._asdict().items():
        if name != "tokens":
            _check_row("penalize", name, values, scores.shape[0])
    require(
        params.tokens.dtype == torch.int32 and params.tokens.stride(1) == 1,
        "penalize: tokens must be int32 rows",
    )
    table.penalize(scores, params, max_len)


def add_bias(scores: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
    """Add values to scores at (row, id), in place; -inf bans a token. No pair may come twice."""
    _check_scores("add_bias", scores)
    require(
        rows.shape == ids.shape == values.shape and rows.dim() == 1,
        "add_bias: rows, ids and values differ in length",
    )
    require(values.dtype == torch.float32, f"add_bias: values are {values.dtype}")
    table.add_bias(scores, rows, ids, values)


def apply_bitmask(scores: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    """Set scores to -inf, in place, where a row's bit is 0. bits: [len(rows), words] int32, bit i % 32 of word i // 32
    for token i; tokens beyond the words are not allowed."""
    _check_scores("apply_bitmask", scores)
    require(
        bits.dtype == torch.int32
        and bits.is_contiguous()
        and bits.dim() == 2
        and bits.shape[0] == rows.shape[0],
        "apply_bitmask: bits must be int32, a row of them per row",
    )
    table.apply_bitmask(scores, rows, bits)


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor | None, num_top: int = 0) -> Logprobs:
    """Log probabilities of the chosen tokens and of the `num_top` most likely ones, of raw logits.

    logits: [num_rows, vocab_size] float32; token_ids: [num_rows] int64, None for the most likely. Of equally likely
    tokens the smallest id is first.
    """
    _check_scores("token_logprobs", logits)
    if token_ids is not None:
        _check_row("token_logprobs", "token_ids", token_ids, logits.shape[0])
        require(token_ids.dtype == torch.int64, f"token_logprobs: token_ids are {token_ids.dtype}, not int64")
    require(0 <= num_top <= min(128, logits.shape[1]), f"token_logprobs: num_top {num_top}")
    return table.token_logprobs(logits, token_ids, num_top)


def _check_scores(op: str, scores: torch.Tensor) -> None:
    require(
        scores.dim() == 2
        and scores.dtype == torch.float32
        and (scores.stride(1) == 1 or scores.numel() == 0),
        f"{op}: scores must be float32 rows",
    )


def _check_row(op: str, name: str, values: torch.Tensor, num_rows: int) -> None:
    require(
        values.shape == (num_rows,) and values.is_contiguous(), f"{op}: {name} must be one number per row"
    )
