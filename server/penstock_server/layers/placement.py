"""How layers are placed: the group they are divided among, their dtype, and whether rows are padded."""

from dataclasses import dataclass

import torch

from penstock_server.distributed import Group

# Rows of a matrix product are padded to a multiple of this for batch invariance: BLAS chooses other kernels for fewer.
INVARIANT_ROWS = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """What every layer of a model shares."""

    group: Group
    dtype: torch.dtype
    batch_invariant: bool = False
