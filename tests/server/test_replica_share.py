"""The share of a machine that a shard takes beside others of its model: its GPU, and its share of the memory."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from driver import engine_config
from penstock_server.base.config import GroupConfig
from penstock_server.base.errors import StartError
from penstock_server.load import cpu_memory
from penstock_server.load.device import choose_device


def test_the_ranks_of_a_replica_have_the_gpus_behind_those_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    config = replace(engine_config(tmp_path), device="cuda")

    def device(rank: int, first_gpu: int) -> torch.device:
        return choose_device(replace(config, group=GroupConfig(rank, 2, tmp_path, first_gpu=first_gpu)))

    assert [device(0, 2), device(1, 2)] == [torch.device("cuda", 2), torch.device("cuda", 3)] == chosen
    with pytest.raises(StartError, match="shard 1 needs a GPU of its own, number 4, and 4 are visible"):
        device(1, 3)


def test_all_shards_of_the_machine_divide_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_memory, "_reclaimable_bytes", lambda: 2**50)
    assert cpu_memory.budget_bytes(1) == cpu_memory.CPU_BUDGET_BYTES
    assert cpu_memory.budget_bytes(2 * 3) == cpu_memory.CPU_BUDGET_BYTES // 6
