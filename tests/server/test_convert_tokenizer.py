"""A folder with a sentencepiece model and no tokenizer.json: converted once, into a folder next to the hub's cache."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from penstock_server.base.errors import StartError
from penstock_server.files import convert_tokenizer
from penstock_server.resolve import resolve
from tokenizers import Tokenizer

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "a penstock is the gated pipe that feeds a turbine",
] * 4
PROBES = ["the fox", "two  spaces", "Grüße, 世界!", "a turbine\n\nand\tmore", "", "x" * 50]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path, "bpe")


def make_folder(tmp_path: Path, kind: str) -> Path:
    """A read-only model folder in the form in which the makers of Llama and T5 publish theirs."""
    folder = tmp_path / "model"
    folder.mkdir()
    python(_TRAIN.format(texts=TEXTS), str(tmp_path / "tokenizer"), kind)
    (tmp_path / "tokenizer.model").rename(folder / "tokenizer.model")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    settings = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors").write_bytes(b"")
    folder.chmod(0o555)
    return folder


# In a process of its own: with the libraries of all other tests in one process, sentencepiece crashes.
_TRAIN = """
import sentencepiece, sys
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter({texts}), model_prefix=sys.argv[1], model_type=sys.argv[2], vocab_size=330,
    byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False,
    minloglevel=3)
"""
_ENCODE = """
import json, sentencepiece, sys
print(json.dumps(sentencepiece.SentencePieceProcessor(model_file=sys.argv[1]).encode({texts})))
"""


def python(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def load(path: Path) -> Any:
    return Tokenizer.from_file(str(path))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_it_gives_the_tokens_of_sentencepiece(tmp_path: Path, home: Path, kind: str) -> None:
    folder = make_folder(tmp_path, kind)
    converted = load(resolve(str(folder)).tokenizer)
    encoded = json.loads(python(_ENCODE.format(texts=PROBES), str(folder / "tokenizer.model")))
    for text, ids in zip(PROBES, encoded, strict=True):
        assert converted.encode(text, add_special_tokens=False).ids == ids, text
        assert converted.decode(ids) == text


def test_it_is_done_once_and_logged(folder: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = resolve(str(folder)).tokenizer
    assert first.is_relative_to(home / "penstock" / "tokenizers")
    assert capsys.readouterr().err == f"Converting {folder / 'tokenizer.model'} to {first}, once\n"
    written = first.stat().st_mtime_ns
    assert resolve(str(folder)).tokenizer == first
    assert (first.stat().st_mtime_ns, capsys.readouterr().err) == (written, "")
    assert not (folder / "tokenizer.json").exists()


def test_other_content_is_another_tokenizer(folder: Path, home: Path) -> None:
    first = resolve(str(folder)).tokenizer
    folder.chmod(0o755)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "add_eos_token": True}))
    assert resolve(str(folder)).tokenizer != first


TIKTOKEN = b"IQ== 0\nIg== 1\nIw== 2\n"


@pytest.mark.parametrize("content", [TIKTOKEN, b"", b"\x0a\xff"])
def test_what_is_no_sentencepiece_model_is_one_line(folder: Path, home: Path, content: bytes) -> None:
    folder.chmod(0o755)
    (folder / "tokenizer.model").write_bytes(content)
    with pytest.raises(StartError) as refused:
        resolve(str(folder))
    assert str(refused.value) == (
        f"{folder}/tokenizer.model cannot be converted: it is no sentencepiece model, or cut short; "
        "download the model with its tokenizer.json, or put one into the folder"
    )
    assert not list(home.rglob("tokenizer.json"))


def test_code_of_the_folder_is_not_run(folder: Path, home: Path) -> None:
    folder.chmod(0o755)
    settings = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "evil.py").write_text(f"open({str(folder / 'was-run')!r}, 'w')")
    with suppress(StartError):
        resolve(str(folder))
    assert not (folder / "was-run").exists()


def test_missing_packages_are_named(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert_tokenizer, "_PACKAGES", ("no-such-package",))
    with pytest.raises(StartError, match=r"no-such-package, .*: pip install 'penstock\[transformers\]'"):
        resolve(str(folder))


def test_a_crash_of_the_converter_is_one_line(
    folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StartError, match="the conversion ended with code 1") as refused:
        resolve(str(folder))
    assert "\n" not in str(refused.value)
