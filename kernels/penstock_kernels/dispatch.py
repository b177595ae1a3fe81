"""Decides, per call, whether an op runs its Triton kernel or its plain twin."""

import os

import torch

# Asked once, as Triton does when kernels are imported: asking the environment takes longer than a small op.
INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"


def runs_kernel(tensor: torch.Tensor) -> bool:
    """On CUDA always; elsewhere only under TRITON_INTERPRET=1, which is for tests.

    The kernels' modules import Triton and are imported only where this holds: a machine without Triton serves too.
    """
    return runs_kernels(tensor.device)


def runs_kernels(device: torch.device) -> bool:
    """The same of whatever is on a device."""
    return device.type == "cuda" or INTERPRETS
