"""A start that cannot succeed: exit code 2 where a flag is wrong, else 1, and one line: what is wrong, what to do."""

import json
import shutil
import socket
from pathlib import Path

import pytest
from e2e.conftest import Launch


@pytest.fixture
def broken(model: Path, tmp_path: Path) -> Path:
    """A copy of the model, to be broken."""
    return shutil.copytree(model, tmp_path / "broken")


def _change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def _error(stderr: str) -> str:
    """Everything from the first error on."""
    assert "Traceback" not in stderr
    return stderr[stderr.index("error: ") :]


def test_an_unknown_folder(launch: Launch) -> None:
    code, stderr = launch("--model-id=/no/such/folder").end()
    assert (code, stderr) == (
        1,
        "error: there is no folder /no/such/folder, and it is no id of a model on the Hugging Face Hub\n",
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file(launch: Launch, broken: Path, name: str) -> None:
    (broken / name).unlink()
    code, stderr = launch(f"--model-id={broken}").end()
    assert code == 1
    assert stderr.startswith(f"error: {broken} has no {name.replace('model', '*')}")
    assert stderr.count("\n") == 1


def test_truncated_weights(launch: Launch, broken: Path) -> None:
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    code, stderr = launch(f"--model-id={broken}").end()
    assert code == 1
    assert "model.safetensors" in _error(stderr)


def test_a_family_that_is_not_supported(launch: Launch, broken: Path) -> None:
    _change_config(broken, model_type="mystery", architectures=["MysteryForCausalLM"])
    code, stderr = launch(f"--model-id={broken}").end()
    assert code == 1
    assert "mystery" in _error(stderr).lower()


def test_heads_that_the_shards_cannot_share(launch: Launch, model: Path) -> None:
    """The flag is what cannot be had: the error begins with it."""
    code, stderr = launch(f"--model-id={model}", "--num-shard=3").end()
    assert code == 2
    assert "error: --num-shard: num_key_value_heads 2 cannot be divided among 3 shards; use one" in _error(
        stderr
    )


def test_a_limit_beyond_the_model_is_wrong_usage(launch: Launch, model: Path) -> None:
    """The error begins with the flag, as for a limit that is wrong by itself."""
    longest = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    code, stderr = launch(f"--model-id={model}", f"--max-total-tokens={longest + 1}").end()
    assert code == 2
    assert f"error: --max-total-tokens {longest + 1} is more than the {longest}" in stderr


def test_a_broken_tokenizer_is_found_before_the_weights_are_read(launch: Launch, broken: Path) -> None:
    (broken / "tokenizer.json").write_text("{}")
    code, stderr = launch(f"--model-id={broken}", "--log-level=warn").end()
    assert code == 1
    assert stderr.startswith(f"error: cannot load the tokenizer {broken}/tokenizer.json: ")
    assert "shard 0" not in stderr


def test_a_broken_chat_template_is_found_before_the_weights_are_read(
    launch: Launch, model: Path, tmp_path: Path
) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{% if %}")
    code, stderr = launch(f"--model-id={model}", f"--chat-template={template}", "--log-level=warn").end()
    assert code == 1
    assert stderr.startswith(f"error: cannot load the chat template {template}: ")
    assert "shard 0" not in stderr


def test_a_port_in_use(launch: Launch, model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, stderr = launch(f"--model-id={model}", f"--port={port}").end()
    assert code == 2
    assert stderr.startswith(f"error: cannot listen on 127.0.0.1:{port}: ")
    assert stderr.count("\n") == 1


def test_files_in_the_working_folder_are_not_imported(launch: Launch, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("torch.py", "json.py", "penstock_server.py"):
        (trap / name).write_text("raise SystemExit('imported from the working folder')")
    code, stderr = launch("--model-id=/no/such/folder", cwd=trap).end()
    assert (code, "working folder" in stderr) == (1, False)
