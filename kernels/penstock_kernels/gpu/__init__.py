"""Triton kernels and their launchers. The public ops check the arguments, these trust them.

Conventions: rows and addresses are int64, sums are float32, constants that shape a kernel are in capitals. A constant
without a recorded measurement beside it is a first guess and says so.

After the start of a server nothing may compile. So what differs from step to step is no constant and changes no
variant: numbers of tokens and rows are `do_not_specialize`, tensors that are cut from an upload are
`do_not_specialize_on_alignment` (they are read number by number), and sizes of blocks come from a few.
"""

import os

# A product and a sum are one instruction, as in every release so far. Triton 3.9 warns where this is not said, and from
# 3.10 on they would be two.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
