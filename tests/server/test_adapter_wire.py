"""Adapters over the wire, to a real shard process: statuses, and what is told of what was loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from adapter_folder import PREFIX, tensors, write
from penstock_server.pb import engine_pb2 as pb
from shard_client import DEADLINE_S, greedy, running_shards


def test_a_shard_loads_uses_and_unloads(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    with running_shards(saved_model().folder, tmp_path, 1, ["--max-loras", "3"]) as [shard]:
        described = shard.describe()
        assert described.max_adapters == 3
        assert "adapters" in described.abilities

        def load(folder: Path, expected_id: str = "") -> Any:
            request = pb.LoadAdapterRequest(path=str(folder), expected_id=expected_id, name="tiny")
            return shard.stub.LoadAdapter(request, timeout=DEADLINE_S)

        def unload(adapter_id: str) -> None:
            shard.stub.UnloadAdapter(pb.UnloadAdapterRequest(adapter_id=adapter_id), timeout=DEADLINE_S)

        folder = write(tmp_path / "adapter", tensors(rank=6))
        loaded = load(folder)
        assert (len(loaded.adapter_id), loaded.max_rank, loaded.vocab_size) == (64, 6, 301)
        assert loaded.num_bytes > 0
        assert list(loaded.invocation_tokens) == []
        assert load(folder, loaded.adapter_id) == loaded
        with pytest.raises(grpc.RpcError) as refused:
            load(folder, "0" * 64)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        name = f"{PREFIX}.0.mlp.down_proj.lora_B.weight"
        bad = {key: value for key, value in tensors().items() if key != name}
        with pytest.raises(grpc.RpcError) as refused:
            load(write(tmp_path / "bad", bad))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert f"{name} is missing" in refused.value.details()

        stream = shard.open()
        prompt: dict[str, Any] = {
            "token_ids": [5, 6, 7],
            "prompt_len": 3,
            "block_ids": [5],
            "sampling": greedy(),
        }
        admitted = [pb.Admit(slot=3, adapter_id=loaded.adapter_id, **prompt)]
        spans = {"span_slots": [3], "span_starts": [0], "span_lens": [3]}
        assert stream.ask(admitted=admitted, **spans).sampled_slots == [3]
        with pytest.raises(grpc.RpcError) as refused:
            unload(loaded.adapter_id)
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        stream.ask(retired_slots=[3])
        unload(loaded.adapter_id)
        [error] = stream.ask(admitted=admitted, **spans).slot_errors
        assert error.code == pb.SlotError.CODE_INVALID
        assert "is not loaded" in error.message


def test_no_folder_ends_the_thread_that_answers(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    """A name that is no valid text has no place in a message; the next load is answered all the same."""
    with running_shards(saved_model().folder, tmp_path, 1) as [shard]:
        for number, name in enumerate(("\ud800", "a\nb\x1b[2J", "x" * 100_000)):
            folder = write(tmp_path / str(number), tensors(), modules_to_save=[name])
            with pytest.raises(grpc.RpcError) as refused:
                shard.stub.LoadAdapter(pb.LoadAdapterRequest(path=str(folder)), timeout=DEADLINE_S)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            details = refused.value.details()
            assert details is not None
            assert "modules_to_save is" in details
            assert details.isprintable()
            assert len(details) < 2500
        loaded = shard.stub.LoadAdapter(
            pb.LoadAdapterRequest(path=str(write(tmp_path / "good"))), timeout=DEADLINE_S
        )
        assert len(loaded.adapter_id) == 64
