"""Which devices run Triton kernels."""

import os

import torch

# Read once, as Triton does when kernels are imported: reading the environment takes longer than a small op.
INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"


def runs_kernels(device: torch.device) -> bool:
    """On CUDA always; elsewhere only under TRITON_INTERPRET=1, which is for tests.

    Modules of kernels import Triton. They are imported only where this is true, so a machine without Triton can serve.
    """
    return device.type == "cuda" or INTERPRETS
