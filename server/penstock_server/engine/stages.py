"""What goes between the stages of a model in a step: hidden states from one to the next, and what the last one finds to
the ranks of all, each of which has rows and an outcome of its own.

Who receives makes room of the right sizes, which follow from the step, so that nobody waits for a size.
"""

from collections.abc import Sequence

import torch

from penstock_server.architectures.spec import ModelSpec
from penstock_server.engine.sampling import Sampled, Scored
from penstock_server.engine.sampling_params import EXCLUDING
from penstock_server.engine.step import SamplingInput
from penstock_server.network.model import Model
from penstock_server.network.stage import Stage


def room_for_hidden(model: Model, num_tokens: int, device: torch.device) -> torch.Tensor:
    """[num_tokens, hidden_size]."""
    assert isinstance(model.facts, ModelSpec), "only our decoder has stages"
    return torch.zeros(num_tokens, model.facts.hidden_size, dtype=model.dtype, device=device)


def received(model: Model, num_tokens: int, device: torch.device) -> torch.Tensor | None:
    """What the stage before has of these tokens; None in the first."""
    if model.stage.is_first:
        return None
    return model.stage.receive(room_for_hidden(model, num_tokens, device))


def tell(stage: Stage, found: Sequence[torch.Tensor]) -> None:
    """Fill these on all ranks with what they are in the last stage."""
    if stage.count == 1:
        return
    # All in one message: ids and probabilities are exact in 64 bits.
    told = stage.tell(torch.cat([numbers.reshape(-1).double() for numbers in found]))
    if stage.is_last:
        return
    parts = torch.split(told, [numbers.numel() for numbers in found])
    for numbers, part in zip(found, parts, strict=True):
        numbers.copy_(part.view_as(numbers))


def tensors_of(sampled: Sampled) -> list[torch.Tensor]:
    """All that was found, in one order."""
    own = (sampled.token_ids, sampled.logprobs, sampled.finite)
    some = (sampled.possible, sampled.top_ids, sampled.top_logprobs)
    apart = [] if sampled.apart is None else tensors_of(sampled.apart)
    return [*own, *(numbers for numbers in some if numbers is not None), *apart]


def room_for_sampled(sampling: SamplingInput, has_masks: bool, device: torch.device) -> Sampled:
    """What `sample` and `sample_decodes` return has these sizes."""
    apart = None if sampling.apart is None else room_for_sampled(sampling.apart, has_masks, device)
    is_restricted = sampling.decodes is None and (has_masks or bool(sampling.features & EXCLUDING))
    count, most = sampling.num_rows, sampling.num_top
    return Sampled(
        torch.zeros(count, dtype=torch.int64, device=device),
        torch.zeros(count, device=device),
        torch.zeros(count, dtype=torch.bool, device=device),
        torch.zeros(count, dtype=torch.bool, device=device) if is_restricted else None,
        torch.zeros(count, most, dtype=torch.int64, device=device) if most else None,
        torch.zeros(count, most, device=device) if most else None,
        apart,
    )


def room_for_scored(count: int, num_top: int, device: torch.device) -> Scored:
    """What `score` returns has these sizes."""
    return Scored(
        torch.zeros(count, device=device),
        torch.zeros(count, num_top, dtype=torch.int64, device=device),
        torch.zeros(count, num_top, device=device),
        torch.zeros(count, dtype=torch.int64, device=device),
    )
