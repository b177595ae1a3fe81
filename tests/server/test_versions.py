"""Shards tell weights and tokenizers apart without reading all of them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_models import matrices_of, served, write
from penstock_server.files.model_folder import open_folder
from penstock_server.files.versions import Versions, read_versions


def _versions(folder: Path) -> Versions:
    return read_versions(open_folder(folder), folder / "tokenizer.json")


def test_a_copy_is_the_same_and_other_numbers_are_another(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    original = saved_model("llama").folder
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    versions = _versions(original)
    assert _versions(copy) == versions
    assert [len(version) for version in versions] == [32, 32 if (copy / "tokenizer.json").exists() else 0]
    [file] = copy.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1000:] = bytes(1000)
    file.write_bytes(data)
    assert _versions(copy).weights != versions.weights


def test_another_config_or_tokenizer_is_another(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(saved_model("llama").folder, tmp_path / "copy"))
    versions = _versions(copy)
    (copy / "tokenizer.json").write_text("{}")
    assert _versions(copy).tokenizer not in ("", versions.tokenizer)
    assert _versions(copy).weights == versions.weights
    config = copy / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-0', '"rms_norm_eps": 2e-0'))
    assert _versions(copy).weights != versions.weights
    (copy / "tokenizer.json").unlink()
    assert _versions(copy).tokenizer == ""


def test_a_gguf_file_is_the_same_wherever_it_is(
    saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = []
    for place, kind in (("here", "F32"), ("there", "F32"), ("other", "F16")):
        (tmp_path / place).mkdir()
        file = tmp_path / place / "model.gguf"
        written = write(saved_model("llama").folder, file, matrices_of(kind))
        versions.append(_versions(served(written, tmp_path / place, monkeypatch).folder))
    here, there, other = versions
    assert here == there
    assert other.weights != here.weights
