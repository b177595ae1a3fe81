"""Ranks that wait for each other: threads of the reference, and processes of the kernel under the interpreter, over
memory that all of them map."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock_kernels import Peers, all_reduce, all_reduce_add_rms_norm

SIZE, DIM, MAX_ROWS = 3, 40, 4
# Rows of the rounds: a row sits rounds out, and begins again in the place of the other parity.
ROUNDS = (2, 4, 1, 1, 3, 4, 2, 1)
PAGE_BYTES = Peers.page_bytes(SIZE, MAX_ROWS, DIM * 4)


def shares(number: int) -> torch.Tensor:
    """The shares that the ranks bring to a round: [SIZE, rows, DIM], equal on all ranks."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(SIZE, ROUNDS[number], DIM, generator=generator)


def play(rank: int, memory: torch.Tensor) -> list[torch.Tensor]:
    """All rounds of a rank, without a word to the others but by the memory: the sums and the norms."""
    peers = Peers.of(rank, memory.view(SIZE, PAGE_BYTES).unbind(), MAX_ROWS, DIM * 4)
    weight, found = torch.ones(DIM), []
    for number in range(len(ROUNDS)):
        mine = shares(number)[rank].clone()
        if number % 3 == 2:
            found.append(all_reduce(mine, peers))
        else:
            residual = torch.zeros_like(mine)
            found += [all_reduce_add_rms_norm(mine, weight, 1e-5, residual, 0.0, peers), residual]
    return found


def check(found: list[list[torch.Tensor]]) -> None:
    """Checks that all ranks have the same bits, and that these are those of the sums."""
    for others in zip(*found, strict=True):
        assert all(torch.equal(other, others[0]) for other in others)
    results = iter(found[0])
    for number in range(len(ROUNDS)):
        total = shares(number).unbind()
        expected = total[0] + total[1] + total[2]
        if number % 3 != 2:
            norm = next(results)
            scale = (expected.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
            assert torch.allclose(norm, expected * scale, atol=1e-6)
        assert torch.equal(next(results), expected)


def test_threads_of_the_reference_wait_for_each_other() -> None:
    memory = torch.zeros(SIZE * PAGE_BYTES, dtype=torch.uint8)
    with ThreadPoolExecutor(SIZE) as pool:
        check(list(pool.map(lambda rank: play(rank, memory), range(SIZE))))


def main(rank: int, memory: Path, results: Path) -> None:
    """One process."""
    torch.set_num_threads(1)
    mapped = torch.from_file(str(memory), shared=True, size=SIZE * PAGE_BYTES, dtype=torch.uint8)
    results.write_text(json.dumps([found.tolist() for found in play(rank, mapped)]))


@pytest.mark.timeout(200)
def test_processes_of_the_kernel_wait_for_each_other(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    memory = tmp_path / "memory"
    memory.write_bytes(bytes(SIZE * PAGE_BYTES))
    env = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    results = [tmp_path / f"{rank}.pt" for rank in range(SIZE)]
    commands: list[list[str | Path]] = [
        [sys.executable, __file__, str(rank), memory, results[rank]] for rank in range(SIZE)
    ]
    processes = [subprocess.Popen(command, env=env) for command in commands]
    assert [process.wait() for process in processes] == [0] * SIZE
    check([[torch.tensor(each) for each in json.loads(path.read_text())] for path in results])


@pytest.mark.gpu
def test_ranks_on_streams_of_one_gpu_wait_for_each_other() -> None:
    """In captured graphs, which are replayed more often than places take turns."""
    device = torch.device("cuda")
    memory = torch.zeros(SIZE, PAGE_BYTES, dtype=torch.uint8, device=device)
    everyone = [Peers.of(rank, memory.unbind(), MAX_ROWS, DIM * 4) for rank in range(SIZE)]
    given = torch.zeros(SIZE, MAX_ROWS, DIM, device=device)
    residuals, weight = torch.zeros_like(given), torch.ones(DIM, device=device)
    streams: list[Any] = [torch.cuda.Stream(device) for _ in range(SIZE)]  # type: ignore[no-untyped-call]
    graphs = []
    compile_alone(everyone[0], weight)
    for rank, peers in enumerate(everyone):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=streams[rank]):
            all_reduce_add_rms_norm(given[rank], weight, 1e-5, residuals[rank], 0.0, peers)
        graphs.append(graph)
    for number in range(8):
        given.normal_(mean=number)
        residuals.zero_()
        torch.cuda.synchronize(device)
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize(device)
        assert all(torch.equal(residual, given[0] + given[1] + given[2]) for residual in residuals)


def compile_alone(peers: Peers, weight: torch.Tensor) -> None:
    """Launch the kernel where nobody is waited for: nothing may be compiled while a graph is captured."""
    alone = Peers.of(0, [torch.zeros_like(page) for page in peers.pages], MAX_ROWS, DIM * 4)
    alone.flags(0).fill_(1)
    x = torch.zeros(MAX_ROWS, DIM, device=weight.device)
    all_reduce_add_rms_norm(x, weight, 1e-5, x.clone(), 0.0, alone)
    torch.cuda.synchronize(weight.device)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
