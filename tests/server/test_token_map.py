"""Tokens of two vocabularies that are the same text, whichever way each writes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from penstock_server.base.errors import StartError
from penstock_server.files.token_map import map_tokens

SPACED, UMLAUT = "\u0120", "\u00c3\u00a4"  # as vocabularies from bytes write a space, and "ä"
FROM_BYTES = {"type": "ByteLevel"}


def write(file: Path, vocabulary: Any, decoder: Any = None, kind: str = "BPE", **more: Any) -> Path:
    model = {"type": kind, "vocab": vocabulary, **more.pop("model", {})}
    file.write_text(json.dumps({"model": model, "decoder": decoder, **more}))
    return file


def listed(*tokens: str) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def test_pieces_are_the_text_that_bytes_spell(tmp_path: Path) -> None:
    model = write(
        tmp_path / "model", listed("a", f"{SPACED}the", UMLAUT, "\u00e4", f"{SPACED}house"), FROM_BYTES
    )
    pieces = [
        ["<unk>", 0.0],
        ["\u2581the", -1.0],
        ["\u00e4", -2.0],
        ["<0xE4>", 0.0],
        ["<0x61>", 0.0],
        ["a", -3.0],
    ]
    pieces += [["use", -4.0], ["house", -5.0]]
    draft = write(tmp_path / "draft", pieces, {"type": "Metaspace"}, "Unigram", model={"unk_id": 0})
    found = map_tokens(model, draft, 8)
    assert dict(zip(found.known, found.equal, strict=True)) == {0: 5, 1: 1, 2: 2, 3: 3}
    # " house" is read as what it ends with.
    assert found.read == {0: 5, 1: 1, 2: 2, 3: 3, 4: 7}
    assert found.unknown == 0


def test_no_token_is_the_equal_of_two(tmp_path: Path) -> None:
    model = write(tmp_path / "model", listed("<0x61>", "a", "b"))
    draft = write(tmp_path / "draft", listed("b", "a"), {"type": "Sequence", "decoders": [FROM_BYTES]})
    found = map_tokens(model, draft, 2)
    assert dict(zip(found.known, found.equal, strict=True)) == {1: 1, 2: 0}
    assert found.read == {0: 1, 1: 1, 2: 0}


def test_what_a_template_writes_is_no_text(tmp_path: Path) -> None:
    def added(*tokens: tuple[str, int]) -> list[dict[str, Any]]:
        return [{"id": number, "content": text, "special": True} for text, number in tokens]

    model = write(
        tmp_path / "model",
        listed("a", "b", "<s>"),
        added_tokens=added(("<s>", 5), ("<turn>", 6), ("\u4e00", 7)),
    )
    draft = write(
        tmp_path / "draft",
        listed("b", "a", ">", "<unk>"),
        added_tokens=added(("<s>", 9)),
        model={"unk_token": "<unk>"},
    )
    found = map_tokens(model, draft, 10)
    assert dict(zip(found.known, found.equal, strict=True)) == {0: 1, 1: 0, 5: 9}
    # The text "<s>" is not the token, and ends as it does.
    assert found.read == {0: 1, 1: 0, 2: 2, 5: 9, 6: 2, 7: 3}


def test_tokens_without_a_row_are_not_there(tmp_path: Path) -> None:
    model = write(tmp_path / "model", listed("a", "b"))
    draft = write(tmp_path / "draft", listed("b", "x", "a"))
    found = map_tokens(model, draft, 2)
    assert (found.known, found.equal, found.read) == ([1], [0], {0: 0, 1: 0})


def test_what_is_no_token_is_left_out(tmp_path: Path) -> None:
    model = write(tmp_path / "model", {"a": 0, "b": 1, "\ud800": 2, "c": -4})
    added = [{"id": -1, "content": "b"}, {"id": 3}, {"content": "a"}, None, {"id": "4", "content": "b"}]
    draft = write(tmp_path / "draft", listed("b", "\ud800", "a"), added_tokens=added)
    found = map_tokens(model, draft, 3)
    assert dict(zip(found.known, found.equal, strict=True)) == {0: 2, 1: 0, 2: 1}


@pytest.mark.parametrize(
    ("vocabulary", "kind", "message"),
    [
        (listed("a", "x", "y", "z"), "BPE", "draft has 4 tokens, .*model 4, and only 1 are in both"),
        (listed("a", "b"), "WordPiece", "its tokens are those of WordPiece"),
        ("none", "BPE", "it has no vocabulary"),
    ],
)
def test_what_has_nothing_in_common_is_refused(
    tmp_path: Path, vocabulary: Any, kind: str, message: str
) -> None:
    model = write(tmp_path / "model", listed("a", "b", "c", "d"))
    draft = write(tmp_path / "draft", vocabulary, kind=kind)
    with pytest.raises(StartError, match=message):
        map_tokens(model, draft, 4)
