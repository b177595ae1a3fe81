"""The reference outputs of transformers: the tokens and log probabilities that the shard must give."""

from typing import Any

import torch


@torch.no_grad()
def greedy(model: Any, prompt: list[int], max_new: int) -> tuple[list[int], list[float]]:
    """Greedy tokens and their log probabilities, computed from scratch for every token: no cache, no tricks."""
    tokens, logprobs = list(prompt), []
    for _ in range(max_new):
        row = model(torch.tensor([tokens])).logits[0, -1].float().log_softmax(-1)
        tokens.append(int(row.argmax()))
        logprobs.append(float(row.max()))
    return tokens[len(prompt) :], logprobs


@torch.no_grad()
def prompt_logprobs(model: Any, prompt: list[int]) -> list[float]:
    """Log probability of every prompt token but the first."""
    rows = model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    return [float(rows[position - 1, prompt[position]]) for position in range(1, len(prompt))]


@torch.no_grad()
def next_logprobs(model: Any, tokens: list[int]) -> torch.Tensor:
    """Log probabilities of every possible next token."""
    row: torch.Tensor = model(torch.tensor([tokens])).logits[0, -1].float().log_softmax(-1)
    return row
