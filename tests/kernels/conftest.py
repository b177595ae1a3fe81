"""The cases of `cases/` run the kernels themselves: on a GPU, or on the CPU in a process of their own.

TRITON_INTERPRET must be set before Triton is imported, so `test_cases.py` starts that process.
"""

import os

import torch

_chosen = {"TRITON_INTERPRET", "PENSTOCK_KERNEL_CASES"} & set(os.environ)
collect_ignore = [] if _chosen or torch.cuda.is_available() else ["cases"]
