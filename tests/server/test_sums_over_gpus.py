"""Two real ranks on two GPUs: sums through memory that both reach, against those of NCCL, alone and in graphs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

_RANK = """
import sys
from pathlib import Path
import torch
from penstock_kernels import rms_norm
from penstock_server.base.config import GroupConfig
from penstock_server.network.distributed import Group
from penstock_server.network.peer_memory import meet_peers

rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
group = Group(GroupConfig(rank, size, folder, timeout_s=60.0), device)
meet_peers(group, device, 4096 * 2)
assert group._peers is not None, "these GPUs are not linked; see the log"
nccl = group.connections.device
weight = torch.randn(4096, device=device, generator=torch.Generator(device).manual_seed(1)).bfloat16()
x = torch.empty(group._peers.max_rows, 4096, dtype=torch.bfloat16, device=device)
residual = torch.zeros_like(x)
group.all_reduce_add_rms_norm(x.zero_(), weight, 1e-5, residual, 0.0)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    normed = group.all_reduce_add_rms_norm(x, weight, 1e-5, residual, 0.0)
for number in range(20):
    x.normal_()
    expected = x.float()
    nccl.all_reduce(expected)
    residual.zero_()
    graph.replay()
    # Two numbers of 16 bits are added and rounded once, by either.
    tolerance = 0.0 if size == 2 else 0.05
    torch.testing.assert_close(residual, expected.bfloat16(), rtol=tolerance, atol=tolerance)
    expected_norm = rms_norm(residual.clone(), weight, 1e-5)
    torch.testing.assert_close(normed, expected_norm, rtol=0.02, atol=0.02)
    small = x[: 1 + number % 3].clone()
    torch.testing.assert_close(group.all_reduce(small), residual[: len(small)], rtol=0, atol=0)
graph.reset()
group.leave()
"""


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_sums_are_those_of_nccl(size: int, tmp_path: Path) -> None:
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs")
    ranks = [
        subprocess.Popen([sys.executable, "-c", _RANK, str(rank), str(size), str(tmp_path)])
        for rank in range(size)
    ]
    assert [rank.wait() for rank in ranks] == [0] * size
