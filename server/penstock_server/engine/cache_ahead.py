"""The cache's memory on a CPU, of which blocks that come next are given to the process before a step writes them.

The system gives memory page by page when it is first written, and clears it. A prompt's keys and values are in memory
that nobody wrote before as long as the cache fills: in a virtual machine that took up to a fifth of the prompt's time.
Blocks that nobody had are used from the first one up (see the scheduler's block pool), so those behind the highest one
so far are touched by a thread that runs only where a core is idle.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress

import torch
from penstock_kernels.native.touch import can_touch, touch

from penstock_server.engine.limits import Limits
from penstock_server.engine.plan import Appends, Plan

# The largest steps whose blocks are touched ahead.
_STEPS_AHEAD = 4
# Bytes of one layer that are touched at a time; between these the thread may be told to end.
_SLICE_BYTES = 2 << 20


class CacheAhead:
    """Follows the plans. All methods are for the thread that steps."""

    def __init__(self, pools: Sequence[torch.Tensor], limits: Limits) -> None:
        """`pools` as in `KVCache`: [num_layers, num_tensors, num_blocks, ...]. Without any nothing is done."""
        self._planes = [plane for pool in pools for layer in pool for plane in layer] if can_touch() else []
        self._num_blocks = limits.num_blocks
        self._num_ahead = -(-_STEPS_AHEAD * limits.max_step_tokens // limits.block_size)
        # Blocks up to this one are touched, or will be by threads that were started.
        self._wanted = 0 if self._planes else limits.num_blocks
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def follow(self, plan: Plan) -> None:
        """Sequences get the blocks of this plan."""
        if self._wanted < self._num_blocks and (plan.admitted or plan.appended):
            self._reach(min(_end_of_blocks(plan) + self._num_ahead, self._num_blocks))

    def _reach(self, end: int) -> None:
        # Many blocks at a time, and a thread for them that ends: it keeps no memory of an engine that is dropped.
        if end < self._wanted + self._num_ahead // 4 and end < self._num_blocks:
            return
        thread = threading.Thread(
            target=self._touch, args=(self._wanted, end), name="cache-ahead", daemon=True
        )
        self._wanted = end
        self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]
        thread.start()

    def close(self) -> None:
        """Called before the cache's memory is given back."""
        self._wanted, self._is_closed = self._num_blocks, True
        for thread in self._threads:
            thread.join()
        self._planes.clear()

    def _touch(self, first: int, end: int) -> None:
        """Touch these blocks in all planes, in parts of at most `_SLICE_BYTES` for each plane."""
        with suppress(OSError):  # where the system forbids it, the thread competes with those of the step
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        most = max(_SLICE_BYTES // max(map(_block_bytes, self._planes)), 1)
        for block in range(first, end, most):
            if self._is_closed:
                return
            for plane in self._planes:
                size = _block_bytes(plane)
                touch(plane.data_ptr() + block * size, min(most, end - block) * size)


def _block_bytes(plane: torch.Tensor) -> int:
    return plane.stride(0) * plane.element_size()


def _end_of_blocks(plan: Plan) -> int:
    """One past the highest block that sequences get."""
    ends = [max(admit.block_ids) + 1 for admit in plan.admitted if admit.block_ids]
    appended = plan.appended
    if isinstance(appended, Appends):
        ends += [int(appended.blocks.max()) + 1] if len(appended.blocks) else []
    else:
        ends += [max(append.block_ids) + 1 for append in appended if append.block_ids]
    return max(ends, default=0)
