"""GGUF files that are cut, spoilt or lack a part end in a refusal that names the file; what is split is served."""

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_models import Written, matrices_of, served, write
from penstock_server.base.errors import StartError
from penstock_server.files.gguf.folder import make_folder
from penstock_server.files.gguf.parts import open_parts
from quantized_checks import check_tokens
from quantized_models import healthy

SIZES = {"hidden_size": 96, "intermediate_size": 288, "head_dim": 8}


@pytest.fixture(scope="module")
def written(saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("gguf")
    return write(healthy(saved_model, **SIZES), folder / "model.gguf", matrices_of("Q4_0"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))


def _mutated(rng: random.Random, content: bytes, header_len: int) -> bytes:
    """Cut, or with other bytes in the header: random ones, or a number that is larger than anything."""
    if rng.random() < 0.2:
        return content[: rng.randrange(len(content))]
    spoilt = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(header_len)
        found = rng.choice([rng.randbytes(1), rng.randbytes(4), struct.pack("<Q", 1 << 60), b"\xff" * 8])
        spoilt[at : at + len(found)] = found
    return bytes(spoilt)


def _refusal(file: Path) -> str | None:
    try:
        make_folder(file)
    except StartError as error:
        return str(error)
    return None


def test_mutated_files_are_refused_or_load(written: Written, tmp_path: Path) -> None:
    content = written.file.read_bytes()
    header_len = min(info.begin for info in open_parts(written.file).tensors.values())
    rng, file = random.Random(0), tmp_path / "mutated.gguf"
    num_refused = 0
    for _ in range(300):
        file.write_bytes(_mutated(rng, content, header_len))
        refusal = _refusal(file)
        if refusal is not None:
            num_refused += 1
            assert str(file) in refusal
            assert "\n" not in refusal
            assert len(refusal) < 2000
    assert num_refused > 200


def _header(num_tensors: int, num_keys: int, rest: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + rest


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


HOSTILE = {
    "empty": (b"", "is empty"),
    "another file": (b"PK" * 20, "not a GGUF file"),
    "version 1": (_header(0, 0, b"", 1), "version is 1"),
    "big-endian": (_header(0, 0, b"", 3 << 24), "version is 50331648"),
    "tensors without end": (_header(1 << 60, 0, b""), "number of tensors is 1152921504606846976"),
    "keys without end": (_header(0, 1 << 60, b""), "number of keys is 1152921504606846976"),
    "an array of 2^60": (
        _header(0, 1, _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 1 << 60)),
        "tokenizer.ggml.tokens is an array of 1152921504606846976 values",
    ),
    "an array of arrays": (
        _header(0, 1, _text("a.key") + struct.pack("<IIQ", 9, 9, 1)),
        "a.key is an array of the type 9",
    ),
    "a long text": (_header(0, 1, _text("a.key") + struct.pack("<IQ", 8, 1 << 40)), "a.key has a text of"),
    "an unknown type of value": (
        _header(0, 1, _text("a.key") + struct.pack("<I", 99)),
        "a.key has the unknown type 99",
    ),
    "a key twice": (_header(0, 2, (_text("a.key") + struct.pack("<II", 4, 1)) * 2), "a.key is there twice"),
    "an odd alignment": (
        _header(0, 1, _text("general.alignment") + struct.pack("<II", 4, 24)),
        "general.alignment is 24",
    ),
    "a tensor beyond the file": (
        _header(1, 0, _text("token_embd.weight") + struct.pack("<IQIQ", 1, 32, 0, 1 << 50)),
        "truncated inside tensor token_embd.weight",
    ),
    "a type of tensor": (
        _header(1, 0, _text("token_embd.weight") + struct.pack("<IQIQ", 1, 256, 16, 0)),
        "tensor token_embd.weight has the type IQ2_XXS",
    ),
    "half a block": (
        _header(1, 0, _text("token_embd.weight") + struct.pack("<IQIQ", 1, 48, 2, 0)),
        "tensor token_embd.weight of the type Q4_0 has the shape [48]",
    ),
    "a tensor without end": (
        _header(1, 0, _text("token_embd.weight") + struct.pack("<IQQIQ", 2, 1 << 62, 1 << 62, 0, 0)),
        "tensor token_embd.weight of the type F32 has the shape",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_with_what_is_wrong(name: str, tmp_path: Path) -> None:
    content, message = HOSTILE[name]
    file = tmp_path / "hostile.gguf"
    file.write_bytes(content)
    with pytest.raises(StartError) as refused:
        make_folder(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert message in str(refused.value)


def test_a_split_model_is_served_by_any_of_its_parts(
    saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = write(
        healthy(saved_model, **SIZES), tmp_path / "model.gguf", matrices_of("Q4_0"), split_max_tensors=9
    )
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert [part.name for part in parts] == [f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    check_tokens(served(Written(parts[1], split.oracle), tmp_path / "cache", monkeypatch))
    renamed = parts[2].rename(tmp_path / "other.gguf")
    with pytest.raises(StartError, match=r"split\.count is 3"):
        make_folder(renamed)
    with pytest.raises(StartError, match=r"model-00003-of-00003\.gguf: part 3 of 3 is missing"):
        make_folder(parts[0])
