"""Threads that share the work of ops in C (src/team.c): whoever calls, and whenever, the results are the same."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from penstock_kernels import linear, rms_norm
from penstock_kernels.native.recording import Arena, record


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """More than there are cores, so that some are taken off theirs in the middle of their work."""
    before = torch.get_num_threads()
    torch.set_num_threads(7)
    yield
    torch.set_num_threads(before)


def product(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, a matrix, and the rows of their product one by one, by one thread."""
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(3, 256, generator=generator), torch.randn(700, 256, generator=generator)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = torch.cat([linear(row[None], weight) for row in x])
    torch.set_num_threads(threads)
    return x, weight, alone


def test_many_jobs_that_follow_each_other() -> None:
    cases = [product(seed) for seed in range(5)]
    for turn in range(400):
        x, weight, alone = cases[turn % 5]
        assert torch.equal(linear(x, weight), alone)


def test_callers_at_the_same_time_do_not_wait_for_each_other() -> None:
    cases = [product(seed) for seed in range(4)]

    def compute(number: int) -> bool:
        x, weight, alone = cases[number]
        return all(torch.equal(linear(x, weight), alone) for _ in range(200))

    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(compute, range(4)))


def test_helpers_that_sleep_come_back() -> None:
    x, weight, alone = product(0)
    for _ in range(5):
        time.sleep(0.02)
        assert torch.equal(linear(x, weight), alone)


@torch.inference_mode()
def test_a_recording_on_more_threads_computes_the_same() -> None:
    x, weight, alone = product(0)
    gains, found = torch.randn(700), []
    recording = record(lambda: found.append(rms_norm(linear(x, weight), gains, 1e-6)), Arena())
    expected = rms_norm(alone, gains, 1e-6)
    for _ in range(300):
        found[0].zero_()
        recording.replay()
        assert torch.equal(found[0], expected)


_FORKED = """
import os, sys, torch
from penstock_kernels import linear
torch.set_num_threads(3)
x, weight = torch.randn(3, 256), torch.randn(700, 256)
before = linear(x, weight)
child = os.fork()
same = torch.equal(linear(x, weight), before)
if child == 0:
    os._exit(0 if same else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(status if same else 2)
"""


def test_a_process_that_was_forked_has_helpers_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORKED], timeout=120, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
