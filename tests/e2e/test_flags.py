"""The shards' parser understands all flags that the launcher passes, and --json-output reaches every process."""

import json
import shutil
from pathlib import Path

from e2e.conftest import Launch
from e2e.launched import START_TIMEOUT_S, arguments, wait_until
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
    wait_until(lambda: len(launched.children()) == 2, START_TIMEOUT_S)
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


def test_what_flags_replace_is_used(launch: Launch, model: Path, tmp_path: Path) -> None:
    tokenizer = Path(shutil.copytree(model, tmp_path / "tokenizer"))
    (tokenizer / "config.json").unlink()
    template = tmp_path / "chat.txt"
    template.write_text("{% for message in messages %}{{ message.content }}{{ message.content }}{% endfor %}")
    launched = launch(
        f"--model-id={model}",
        f"--tokenizer={tokenizer}",
        f"--chat-template={template}",
        '--override-generation-config={"temperature": 0}',
        "--default-max-tokens=3",
        "--rope-factor=2",
        "--compute-type=1-test",
        "--aip-predict-route=/v1/endpoints/1/deployedModels/2:predict",
        "--log-level=warn,launcher=info",
    ).wait_until_serving()
    chat = {"messages": [{"role": "user", "content": "ab"}], "ignore_eos": True}
    with launched.request("POST", "/v1/chat/completions", chat) as response:
        assert response.headers["x-compute-type"] == "1-test"
        first = json.loads(response.read())
    single = launched.post("/tokenize", {"inputs": "abab", "add_special_tokens": False})[1]
    assert first["usage"]["completion_tokens"] == 3
    assert first["usage"]["prompt_tokens"] == len(single)
    # Greedy by the default of the flag.
    assert launched.post("/v1/chat/completions", chat)[1]["choices"] == first["choices"]
    info = json.loads(launched.get("/info")[1])
    length = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    assert info["max_total_tokens"] == 2 * length
    body = {"instances": [{"inputs": "ab"}]}
    status, reply = launched.post("/v1/endpoints/1/deployedModels/2:predict", body)
    assert (status, len(reply["predictions"])) == (200, 1)
    assert " INFO " not in launched.stderr
    assert "Serving" in launched.stderr


def test_json_output_is_json_line_by_line(launch: Launch, model: Path) -> None:
    launched = launch(f"--model-id={model}", *FLAGS).wait_until_serving()
    lines = [json.loads(line) for line in launched.stderr.splitlines()]
    assert {"launcher", "shard 0", "shard 1"} <= {line["process"] for line in lines}
    assert all({"timestamp", "level", "message"} <= line.keys() for line in lines)
