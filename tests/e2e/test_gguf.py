"""A GGUF file is served by its path, with its own tokenizer and chat template."""

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.launched import Launched
from e2e.models import greedy, make_model
from gguf_models import Written, matrices_of, write
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("gguf")
    model = make_model(folder / "model", config_class=LlamaConfig, model_class=LlamaForCausalLM)
    return write(model, folder / "tiny.Q8_0.gguf", matrices_of("Q8_0"))


def test_a_chat_has_the_words_of_transformers(
    launch: Callable[..., Launched], written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    flags = (f"--model-id={written.file}", "--dtype=float32", "--num-shard=2")
    server = launch(*flags).wait_until_serving()
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 200, reply
    expected = greedy(written.file.with_suffix(".meant"), "user: Hello\nassistant:", 12)[1]
    assert reply["choices"][0]["message"]["content"] == expected
    assert "GGUF: 14 matrices take" in server.stderr


def test_a_broken_file_is_named(launch: Callable[..., Launched], tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 16)
    code, stderr = launch(f"--model-id={tmp_path}").end()
    assert code == 1
    assert f"{tmp_path}/broken.gguf: the number of tensors is" in stderr
