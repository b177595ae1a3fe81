"""Sums over ranks, of which one process plays all: the shares and flags of the others are there before a rank begins.

`test_all_reduce.py` above has ranks that wait for each other.
"""

from collections.abc import Callable

import pytest
import torch
from closeness import DTYPES, assert_close
from penstock_kernels import Peers, all_reduce, all_reduce_add_rms_norm, reference

MAX_ROWS = 5


class Ranks:
    """As many ranks as there are pages in one tensor; all on one device."""

    def __init__(self, size: int, row_bytes: int, device: torch.device) -> None:
        page_bytes = Peers.page_bytes(size, MAX_ROWS, row_bytes)
        self.memory = torch.zeros(size, page_bytes, dtype=torch.uint8, device=device)
        pages = self.memory.unbind()
        self.peers = [Peers.of(rank, pages, MAX_ROWS, row_bytes) for rank in range(size)]

    def arrive(self, shares: torch.Tensor) -> None:
        """All ranks have their rows of the next round in place, and have told each other. shares: [size, rows, dim]."""
        _, num_rows, dim = shares.shape
        rows = torch.arange(num_rows, device=shares.device)
        for rank, peers in enumerate(self.peers):
            rounds = peers.rounds[:num_rows] + 1
            peers.places(rank, dim, shares.dtype)[rounds % 2, rows] = shares[rank]
            for other in range(peers.size):
                peers.flags(other)[:num_rows, rank] = rounds


Make = Callable[[int, int], Ranks]


@pytest.fixture
def make(device: torch.device, reach: Callable[[torch.Tensor], None]) -> Make:
    def made(size: int, row_bytes: int) -> Ranks:
        ranks = Ranks(size, row_bytes, device)
        reach(ranks.memory)
        return ranks

    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "dim"), [(2, 64), (3, 200), (8, 63)])
def test_all_ranks_have_the_norm_of_the_sum(
    size: int, dim: int, dtype: torch.dtype, device: torch.device, make: Make
) -> None:
    """In rounds of other numbers of rows, so that rows are in different rounds."""
    ranks = make(size, dim * dtype.itemsize)
    weight = torch.randn(dim, device=device).to(dtype)
    for num_rows in (3, 1, MAX_ROWS, 2):
        shares = torch.randn(size, num_rows, dim, device=device).to(dtype)
        before = torch.randn(num_rows, dim, device=device).to(dtype)
        ranks.arrive(shares)
        residuals = [before.clone() for _ in range(size)]
        found = [
            all_reduce_add_rms_norm(shares[rank].clone(), weight, 1e-5, residuals[rank], 0.5, peers)
            for rank, peers in enumerate(ranks.peers)
        ]
        total = _added(shares)
        exact = (total + before).double()
        assert_close(
            found[0], reference.rms_norm(exact.clone(), weight.double(), 1e-5, torch.zeros_like(exact), 0.5)
        )
        for other, residual in zip(found, residuals, strict=True):
            assert torch.equal(other, found[0])
            assert torch.equal(residual, total + before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_ranks_have_the_sum(dtype: torch.dtype, device: torch.device, make: Make) -> None:
    ranks = make(4, 80 * dtype.itemsize)
    for dim in (80, 2, 33):
        shares = torch.randn(4, 3, dim, device=device).to(dtype)
        ranks.arrive(shares)
        for rank, peers in enumerate(ranks.peers):
            x = shares[rank].clone()
            assert all_reduce(x, peers) is x
            assert torch.equal(x, _added(shares))


def test_rounds_of_both_ops_follow_each_other(device: torch.device, make: Make) -> None:
    """A rank that only sums, as one whose step failed does, meets one that norms, too."""
    ranks = make(2, 64 * 4)
    shares = torch.randn(2, 2, 64, device=device)
    ranks.arrive(shares)
    summed = all_reduce(shares[0].clone(), ranks.peers[0])
    weight, residual = torch.ones(64, device=device), torch.zeros(2, 64, device=device)
    all_reduce_add_rms_norm(shares[1].clone(), weight, 1e-5, residual, 0.0, ranks.peers[1])
    assert torch.equal(summed, residual)
    assert all(peers.rounds.tolist() == [1, 1, 0, 0, 0] for peers in ranks.peers)


def test_a_row_is_put_where_the_round_before_did_not(device: torch.device, make: Make) -> None:
    """Others may still read the row of the round before."""
    ranks = make(2, 64 * 4)
    peers = ranks.peers[0]
    for value in (1.0, 2.0, 3.0):
        shares = torch.full((2, 1, 64), value, device=device)
        ranks.arrive(shares)
        for rank in range(2):
            all_reduce(shares[rank].clone(), ranks.peers[rank])
    assert sorted(peers.places(0, 64, torch.float32)[:, 0, 0].tolist()) == [2.0, 3.0]


@pytest.mark.parametrize("shape", [(MAX_ROWS + 1, 8), (2, 17), (0, 8), (2, 2, 4)])
def test_rows_that_have_no_place_are_refused(
    shape: tuple[int, ...], device: torch.device, make: Make
) -> None:
    peers = make(2, 64).peers[0]
    with pytest.raises(ValueError, match=r"all_reduce: x .* against 5 rows of 64 bytes"):
        all_reduce(torch.zeros(shape, device=device), peers)


def _added(shares: torch.Tensor) -> torch.Tensor:
    """In the order of ranks, rounded once."""
    total = torch.zeros(shares.shape[1:], device=shares.device)
    for share in shares:
        total += share.float()
    return total.to(shares.dtype)
