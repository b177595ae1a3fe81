"""Memory that the kernels of all ranks reach, for sums of few rows: where NVLink ties each two GPUs of a group.

It is made once, before the memory for the cache is measured, and stays for as long as the group: captured graphs have
its address. It is PyTorch's symmetric memory. Where anything is not as it must be, all sums go over NCCL, on all ranks
alike.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from penstock_kernels import Peers

from penstock_server.network.distributed import Group

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# Rows of a sum: each has a program, and all must run at once; there is no GPU with NVLink and fewer multiprocessors.
_MOST_ROWS = 64
# The bytes that a rank reads at most from others in one shot. A ring takes some 10 us longer to meet, in which
# NVLink moves 4 MB; from there on it wins, as it reads less. By arithmetic, unmeasured.
_MOST_BYTES = 4 * 1024**2


class _NotReachedError(Exception):
    """Why kernels cannot reach the memory of other ranks."""


def meet_peers(group: Group, device: torch.device, row_bytes: int) -> None:
    """Have small sums of the group go through memory that all ranks reach, if there is such memory. Rows have so many
    bytes at most. All ranks must call it."""
    if group.size == 1 or device.type != "cuda":
        return
    max_rows = rows_at_once(group.size, row_bytes)
    num_bytes = Peers.page_bytes(group.size, max_rows, row_bytes)
    own = _agreed(group, lambda: _allocated(group, device, num_bytes))
    if own is None:
        return
    found = _agreed(group, lambda: _mapped(group, own, num_bytes))
    if found is None or not _are_seen(group, found[1]):
        return
    handle, pages = found
    group.reach(Peers.of(group.rank, pages, max_rows, row_bytes), handle)
    logger.info("sums of up to %d rows go through memory that all ranks reach, others over NCCL", max_rows)


def rows_at_once(size: int, row_bytes: int) -> int:
    """Up to how many rows the ranks of a group of this size read all shares themselves."""
    return max(1, min(_MOST_ROWS, _MOST_BYTES // ((size - 1) * row_bytes)))


def _agreed(group: Group, make: Callable[[], Result]) -> Result | None:
    """The result of `make` on this rank; None if any rank failed."""
    made: Result | None = None
    try:
        made = make()
    # PyTorch's errors are of many kinds, and none of them is one of this group: NCCL adds up as well.
    except (_NotReachedError, RuntimeError, ImportError, AttributeError, ValueError) as error:
        logger.info("all sums go over NCCL: %s", str(error).split("\n", 1)[0])
    everyone = group.gather_numbers(int(made is not None))
    return made if min(everyone) == (1,) else None


def _allocated(group: Group, device: torch.device, num_bytes: int) -> torch.Tensor:
    """This rank's memory; zeros."""
    from torch.distributed import _symmetric_memory as symmetric

    first = (device.index or 0) - group.rank
    _check_links(_links(), range(first, first + group.size))
    own = symmetric.empty(num_bytes, dtype=torch.uint8, device=device)
    return own.zero_()


def _links() -> list[list[int]]:
    """How many links of NVLink tie each GPU that this process sees to each other one."""
    from torch._C import _autograd, _distributed_c10d

    found: Any = _distributed_c10d._detect_dma_connectivity(_autograd.DeviceType.CUDA, "nvlink")  # type: ignore[attr-defined]  # unknown to the stubs
    links: list[list[int]] = found.matrix
    return links


def _check_links(links: list[list[int]], gpus: range) -> None:
    for one in gpus:
        for other in gpus:
            if one != other and not links[one][other]:
                raise _NotReachedError(f"no NVLink ties GPU {one} to GPU {other}")


def _mapped(group: Group, own: torch.Tensor, num_bytes: int) -> tuple[Any, list[torch.Tensor]]:
    """The handle that keeps the mapping, and the memory of every rank."""
    from torch.distributed import _symmetric_memory as symmetric
    from torch.distributed import distributed_c10d

    handle: Any = symmetric.rendezvous(own, distributed_c10d._get_default_group())
    others = range(group.size)
    return handle, [
        own if rank == group.rank else handle.get_buffer(rank, (num_bytes,), torch.uint8) for rank in others
    ]


def _are_seen(group: Group, pages: list[torch.Tensor]) -> bool:
    """Whether what each rank writes is what the others read. The pages are zeros before and afterwards."""
    own = pages[group.rank]

    def write(number: int) -> None:
        own.fill_(number)
        torch.cuda.synchronize(own.device)
        group.gather_numbers(number)

    write(group.rank + 1)
    seen = [(int(page.min()), int(page.max())) for page in pages]
    is_right = seen == [(rank + 1, rank + 1) for rank in range(group.size)]
    everyone = group.gather_numbers(int(is_right))
    write(0)
    if min(everyone) != (1,):
        logger.warning(
            "all sums go over NCCL: ranks do not see what others write to shared memory of the GPUs"
        )
    return min(everyone) == (1,)
