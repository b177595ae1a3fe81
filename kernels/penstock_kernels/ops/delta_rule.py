"""Linear attention by the gated delta rule: a matrix for each head, which forgets, and is corrected by every token."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans


def gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    step: torch.Tensor,
    beta: torch.Tensor,
    decay: Decay,
    state: torch.Tensor,
    spans: RecurrentSpans,
) -> torch.Tensor:
    """For each token and head: S = left S; S += key (sigmoid(beta) (value - S^T key))^T; the result is S^T query.

    query, key: [num_tokens, num_key_heads, key_dim], which are normalised here to length 1, and queries divided by the
    square root of key_dim; value: [num_tokens, num_heads, value_dim]; each key head serves as many heads in a row.
    step, beta: [num_tokens, num_heads]; `decay` makes of `step` what is left. With a step of [num_tokens, num_heads,
    key_dim] each row of S forgets by itself (KDA).
    `state`: [num_rows, num_heads, key_dim, value_dim] float32, read and replaced in place. Result: as value.
    """
    num_heads, value_dim = value.shape[1:]
    require(
        query.shape == key.shape
        and num_heads % key.shape[1] == 0
        and beta.shape == value.shape[:2]
        and state.shape[1:] == (num_heads, key.shape[2], value_dim)
        and state.dtype == torch.float32
        and len(value) == len(query) == sum(spans.query_lens),
        lambda: (
            f"gated_delta_rule: query {tuple(query.shape)}, value {tuple(value.shape)}, beta {tuple(beta.shape)}, "
            f"state {tuple(state.shape)}"
        ),
    )
    decay.check("gated_delta_rule", step, len(value), num_heads, key.shape[2])
    require_same_dtype("gated_delta_rule", query=query, key=key, value=value, step=step, beta=beta)
    return table.gated_delta_rule(query, key, value, step, beta, decay, state, spans)
