"""The cases of `cases/` run the kernels themselves: on a GPU, or interpreted in a process of their own.

TRITON_INTERPRET must be set before Triton is imported, so `test_interpreted.py` starts that process.
"""

import os

import torch

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available() else ["cases"]
