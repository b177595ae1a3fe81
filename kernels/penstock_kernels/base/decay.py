"""How much of a head's state a token leaves: both kinds of recurrent layers that forget say it in the same numbers."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F

from penstock_kernels.base.checks import require


class Decay(NamedTuple):
    """A token's step is softplus(step + step_bias), within bounds; exp(-exp(log_rate) step) of the state is left.

    Both tensors: [num_heads] float32.
    """

    log_rate: torch.Tensor
    step_bias: torch.Tensor
    min_step: float = 0.0
    max_step: float = math.inf

    def steps(self, step: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_heads] of any type to float32."""
        return F.softplus(step.float() + self.step_bias).clamp(self.min_step, self.max_step)

    def log_left(self, steps: torch.Tensor) -> torch.Tensor:
        """The logarithm of what is left, of `steps`."""
        return steps * -self.log_rate.exp()

    def check(self, op: str, step: torch.Tensor, num_tokens: int, num_heads: int) -> None:
        """Raise ValueError where shapes or types are others."""
        require(
            step.shape == (num_tokens, num_heads)
            and self.log_rate.shape == self.step_bias.shape == (num_heads,)
            and self.log_rate.dtype == self.step_bias.dtype == torch.float32,
            lambda: f"{op}: step {tuple(step.shape)}, numbers of heads {tuple(self.log_rate.shape)}",
        )
