"""Compares a borrowed model with transformers alone before it serves: prompts in pieces, over their cache."""

import torch
from penstock_kernels import AttentionSpans

from penstock_server.network.borrowed.model import BorrowedModel
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.kv_cache import CacheFormat, KVCache
from penstock_server.network.states import StateRows, make_states

# Two sequences in each step, each cut twice, with a single token between: one that sees positions that it must not see
# is noticed.
_LENGTHS = (11, 7)
_CUTS = (0, 4, 5)
_BLOCK_SIZE = 4
_BLOCKS_EACH = 3
# The tolerance of log probabilities; 16-bit numbers are rounded differently by different orders of the same sum.
_TOLERANCE = {torch.float32: 2e-3}
_WIDE_TOLERANCE = 0.5


@torch.inference_mode()
def compare(borrowed: BorrowedModel, device: torch.device) -> None:
    """Raises ValueError where steps give other log probabilities than the model alone."""
    ids = [_ids(length, borrowed.facts.vocab_size, device) for length in _LENGTHS]
    with borrowed.linears.trial():
        found = _in_steps(borrowed, ids, device)
    borrowed.model.set_attn_implementation("eager")
    alone = [borrowed.model(input_ids=part[None], use_cache=False).logits[0].float() for part in ids]
    borrowed.model.set_attn_implementation(borrowed.attention)
    for part, expected in zip(found, alone, strict=True):
        difference = float((part.log_softmax(-1) - expected.log_softmax(-1)).abs().max())
        if not difference <= _TOLERANCE.get(borrowed.dtype, _WIDE_TOLERANCE):
            raise ValueError(f"step by step its log probabilities differ by {difference:.3g}")


def _ids(length: int, vocab_size: int, device: torch.device) -> torch.Tensor:
    return (torch.arange(length, device=device) * 7919 + 13 * length) % vocab_size


def _in_steps(borrowed: BorrowedModel, ids: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    cache_format = CacheFormat(borrowed.dtype)
    shape, dtype, count = borrowed.state_shape, borrowed.dtype, len(ids)
    states = None if shape is None else make_states(shape, StateRows(count), dtype, device)
    sizes = count * _BLOCKS_EACH, _BLOCK_SIZE, cache_format, device, True
    cache = KVCache(borrowed.cache_shape, *sizes, states)
    ends = (*_CUTS[1:], None)
    steps = [
        _step(borrowed, cache, [(start, part[start:end]) for part in ids], device)
        for start, end in zip(_CUTS, ends, strict=True)
    ]
    return [torch.cat(parts) for parts in zip(*steps, strict=True)]


def _step(
    borrowed: BorrowedModel,
    cache: KVCache,
    pieces: list[tuple[int, torch.Tensor]],
    device: torch.device,
) -> list[torch.Tensor]:
    lens = tuple(len(part) for _start, part in pieces)
    positions = [torch.arange(start, start + len(part), device=device) for start, part in pieces]
    per_sequence = _BLOCKS_EACH * _BLOCK_SIZE
    cache_positions = torch.cat([number * per_sequence + part for number, part in enumerate(positions)])
    tables = torch.arange(len(pieces) * _BLOCKS_EACH, dtype=torch.int32, device=device).view(len(pieces), -1)
    contexts = tuple(start + len(part) for start, part in pieces)
    spans = AttentionSpans(lens, contexts, tables, _BLOCK_SIZE)
    token_ids = torch.cat([part for _start, part in pieces])
    slots = torch.arange(len(pieces), device=device)
    hidden = borrowed(ForwardInput(token_ids, torch.cat(positions), cache_positions, spans, slots), cache)
    return list(torch.split(borrowed.logits(hidden), list(lens)))
