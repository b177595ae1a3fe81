"""What the launcher tells the shards is what their parser understands, and --json-output reaches every process."""

import json
from pathlib import Path

from e2e.conftest import Launch
from e2e.launched import arguments, wait_until
from penstock_server.process.flags import parse

FLAGS = (
    "--num-shard=2",
    "--dtype=float32",
    "--max-total-tokens=128",
    "--max-batch-prefill-tokens=64",
    "--max-batch-total-tokens=1000",
    "--max-batch-size=4",
    "--batch-invariant",
    "--poison-cache",
    "--json-output",
)


def test_every_flag_of_a_shard_is_understood_by_it(launch: Launch, model: Path) -> None:
    launched = launch(f"--model-id={model}", *FLAGS)
    wait_until(lambda: len(launched.children()) == 2, 20)
    given = [arguments(pid) for pid in launched.children()]
    for line in given:
        config = parse([argument for argument in line[line.index("penstock_server") + 1 :] if argument])
        assert config.model_path == model
        assert (config.dtype, config.device, config.json_output) == ("float32", "cpu", True)
        assert config.threads
        assert (config.batch_invariant, config.cache.is_poisoned) == (True, True)
        assert (config.cache.max_sequence_len, config.cache.max_step_tokens, config.cache.num_slots) == (
            128,
            64,
            4,
        )
        assert config.cache.num_blocks is not None
        assert config.cache.num_blocks * config.cache.block_size == 1008
        assert config.group.world_size == 2
    assert {argument for line in given for argument in line if "--rank" in argument} == {
        "--rank=0",
        "--rank=1",
    }


def test_json_output_is_json_line_by_line(launch: Launch, model: Path) -> None:
    launched = launch(f"--model-id={model}", *FLAGS).wait_until_serving()
    lines = [json.loads(line) for line in launched.stderr.splitlines()]
    assert {"launcher", "shard 0", "shard 1"} <= {line["process"] for line in lines}
    assert all({"timestamp", "level", "message"} <= line.keys() for line in lines)
