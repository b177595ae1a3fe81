"""How much of a machine's memory the KV cache may take where the model is computed on the CPU."""

import os

# The pool shares the memory with the weights and the other programs of the user.
CPU_BUDGET_BYTES = 4 * 1024**3
CPU_BUDGET_SHARE = 4


def budget_bytes(num_shards: int) -> int:
    """The default size of one shard's pool; the shards of all replicas on the machine are counted."""
    return min(_available_bytes() // CPU_BUDGET_SHARE, CPU_BUDGET_BYTES) // num_shards


def free_bytes(num_shards: int) -> int:
    """One shard's part of all free memory of the machine, where its user says how much it takes."""
    return _available_bytes() // num_shards


def _available_bytes() -> int:
    return max(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _reclaimable_bytes())


def _reclaimable_bytes() -> int:
    """MemAvailable: free memory and page cache; 0 where the system does not say."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 0
