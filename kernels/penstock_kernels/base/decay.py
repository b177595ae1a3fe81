"""How much of a head's state a token leaves: all kinds of recurrent layers that forget say it in the same numbers."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F

from penstock_kernels.base.checks import require


class Decay(NamedTuple):
    """A token's step is softplus(step + step_bias), within bounds; exp(-exp(log_rate) step) of the state is left.

    Both tensors: [num_heads] float32. Where the rows of a head's matrix forget by themselves, there is a step and a
    bias for each of them: `step_bias` is [num_heads, num_rows].
    """

    log_rate: torch.Tensor
    step_bias: torch.Tensor
    min_step: float = 0.0
    max_step: float = math.inf

    def steps(self, step: torch.Tensor) -> torch.Tensor:
        """[num_tokens, *shape of the bias] of any type to float32."""
        return F.softplus(step.float() + self.step_bias).clamp(self.min_step, self.max_step)

    def log_left(self, steps: torch.Tensor) -> torch.Tensor:
        """The logarithm of what is left, of `steps`."""
        return steps * -self.log_rate.exp().view(-1, *(1,) * (steps.dim() - 2))

    def check(
        self, op: str, step: torch.Tensor, num_tokens: int, num_heads: int, num_rows: int | None = None
    ) -> None:
        """Raise ValueError where shapes or types are others. `num_rows`: rows may forget by themselves."""
        shapes = {(num_heads,), (num_heads, num_rows)}
        require(
            step.shape == (num_tokens, *self.step_bias.shape)
            and self.step_bias.shape in shapes
            and self.log_rate.shape == (num_heads,)
            and self.log_rate.dtype == self.step_bias.dtype == torch.float32,
            lambda: f"{op}: step {tuple(step.shape)}, numbers of heads {tuple(self.log_rate.shape)}",
        )
