"""The tokenizer that is made of a GGUF file's metadata gives the tokens of the one that the file was made of."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import tiny_model
from gguf import GGUFWriter, TokenType
from penstock_server.base.errors import StartError
from penstock_server.files.gguf.folder import make_folder
from penstock_server.files.gguf.pre_tokenizers import PRE_TOKENIZERS
from tokenizers import Tokenizer, pre_tokenizers

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "a penstock is the gated pipe that feeds a turbine",
] * 4
PROBES = ["the fox", "two  spaces", "Grüße, 世界!", "a turbine\n\nand\tmore", "", " x" * 20, "it's 12345 <s>"]
# In a process of its own: with the libraries of all other tests in one process, sentencepiece crashes.
_SENTENCEPIECE = """
import json, sentencepiece, sys
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter({texts}), model_prefix=sys.argv[1], model_type="bpe", vocab_size=330,
    byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False,
    minloglevel=3)
model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1] + ".model")
ids = range(model.get_piece_size())
kinds = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in ids]
print(json.dumps({{
    "tokens": [model.id_to_piece(i) for i in ids],
    "scores": [model.get_score(i) for i in ids],
    "kinds": kinds,
    "ids": [model.encode(text) for text in {probes}],
}}))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(tmp_path / "home"))


def make(tmp_path: Path, add: Callable[[GGUFWriter], Any]) -> Path:
    """The folder of a file that has a tokenizer, and of a model what is asked for."""
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    for count in (writer.add_context_length, writer.add_embedding_length, writer.add_feed_forward_length):
        count(32)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    add(writer)
    writer.add_tensor("token_embd.weight", np.zeros((400, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return make_folder(tmp_path / "model.gguf")


def tokenizer_of(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def add_byte_level(writer: GGUFWriter, tokenizer: Tokenizer, pre: str = "gpt-2") -> None:
    raw = json.loads(tokenizer.to_str())
    special = {added["id"] for added in raw["added_tokens"]}
    texts = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([text for text, _ in texts])
    writer.add_token_types(
        [TokenType.CONTROL if number in special else TokenType.NORMAL for _, number in texts]
    )
    writer.add_token_merges([" ".join(pair) for pair in raw["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def test_byte_level_tokens_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    own = tiny_model.train_tokenizer(301)
    found = tokenizer_of(make(tmp_path, lambda writer: add_byte_level(writer, own)))
    for text in PROBES:
        ids = found.encode(text, add_special_tokens=True).ids
        assert ids == own.encode(text).ids
        assert found.decode(ids, skip_special_tokens=False) == text


def test_sentencepiece_tokens_are_those_of_sentencepiece(tmp_path: Path) -> None:
    code = _SENTENCEPIECE.format(texts=TEXTS, probes=PROBES[:-1])
    command = [sys.executable, "-c", code, str(tmp_path / "tokenizer")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own = json.loads(done.stdout.splitlines()[-1])

    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(own["tokens"])
        writer.add_token_scores(own["scores"])
        writer.add_token_types(own["kinds"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    found = tokenizer_of(make(tmp_path, add))
    for text, ids in zip(PROBES[:-1], own["ids"], strict=True):
        assert found.encode(text, add_special_tokens=False).ids == ids
        assert found.decode(ids) == text
        # Sentencepiece's file says nothing of it; llama.cpp begins with the token for that.
        assert found.encode(text).ids == [1, *ids]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_rule_keeps_every_character(pre: str, tmp_path: Path) -> None:
    own = tiny_model.train_tokenizer(301)
    folder = make(tmp_path, lambda writer: add_byte_level(writer, own, pre))
    found = tokenizer_of(folder)
    for text in PROBES:
        assert (
            found.decode(found.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text
        )


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'", "LL", "Ġsay", "Ġ12345", "Ġ", "Ġ!!", "Ċ", "Ċ", "HTMLPage"]),
        ("smollm", ["I", "'", "LL", "Ġsay", "Ġ", *"12345", "Ġ", "Ġ!!", "Ċ", "Ċ", "HTMLPage"]),
        ("llama-bpe", ["I", "'LL", "Ġsay", "Ġ", "123", "45", "Ġ", "Ġ!!ĊĊ", "HTMLPage"]),
        ("qwen2", ["I", "'LL", "Ġsay", "Ġ", *"12345", "Ġ", "Ġ!!ĊĊ", "HTMLPage"]),
        ("gpt-4o", ["I'LL", "Ġsay", "Ġ", "123", "45", "Ġ", "Ġ!!ĊĊ", "HTMLPage"]),
        ("tekken", ["I", "'LL", "Ġsay", "Ġ", *"12345", "Ġ", "Ġ!!ĊĊ", "HTMLPage"]),
    ],
)
def test_text_is_split_as_the_rule_says(pre: str, pieces: list[str], tmp_path: Path) -> None:
    own = tiny_model.train_tokenizer(301)
    folder = make(tmp_path, lambda writer: add_byte_level(writer, own, pre))
    step: pre_tokenizers.PreTokenizer = tokenizer_of(folder).pre_tokenizer
    text = "I'LL say 12345  !!\n\nHTMLPage"
    assert [piece for piece, _ in step.pre_tokenize_str(text)] == pieces


def test_settings_name_templates_special_tokens_and_ends(tmp_path: Path) -> None:
    own = tiny_model.train_tokenizer(301)
    own.add_special_tokens(["<|im_end|>"])

    def add(writer: GGUFWriter) -> None:
        add_byte_level(writer, own)
        writer.add_chat_template(
            [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
        )
        writer.add_add_bos_token(True)

    folder = make(tmp_path, add)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    templates = {entry["name"]: entry["template"] for entry in settings.pop("chat_template")}
    assert templates == {"default": "A", "tool_use": "B"}
    assert settings == {"bos_token": "<s>", "eos_token": "</s>"}
    config = json.loads((folder / "config.json").read_text())
    assert config["eos_token_id"] == [2, own.token_to_id("<|im_end|>")]
    found = tokenizer_of(folder)
    assert found.encode("a").ids == [1, *own.encode("a").ids]
    assert found.encode("<|im_end|>", add_special_tokens=False).ids == [own.token_to_id("<|im_end|>")]


def add_tokens(writer: GGUFWriter, count: int) -> None:
    writer.add_token_list([str(number) for number in range(count)])
    writer.add_token_types([1] * count)


REFUSED: dict[str, tuple[Callable[[GGUFWriter], Any], str]] = {
    "another kind": (lambda writer: writer.add_tokenizer_model("t5"), "tokenizer.ggml.model is 't5'"),
    "another rule": (
        lambda writer: writer.add_tokenizer_pre("poro-chat"),
        "tokenizer.ggml.pre is 'poro-chat'",
    ),
    "merges of what is no token": (lambda writer: writer.add_token_merges(["a zz"]), "'zz' is none"),
    "merges of one": (lambda writer: writer.add_token_merges(["ab"]), "tokenizer.ggml.merges is 'ab'"),
    "fewer types": (lambda writer: writer.add_token_types([1]), "tokenizer.ggml.token_type"),
    "no such token": (lambda writer: writer.add_eos_token_id(999), "tokenizer.ggml.eos_token_id is 999"),
    "a token twice": (lambda writer: writer.add_token_list(["a"] * 301), "300 tokens twice"),
    "more tokens than rows": (lambda writer: add_tokens(writer, 401), "tokenizer.ggml.tokens is 401"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_with_its_key(name: str, tmp_path: Path) -> None:
    spoil, message = REFUSED[name]

    def add(writer: GGUFWriter) -> None:
        add_byte_level(writer, tiny_model.train_tokenizer(301))
        spoil(writer)

    with pytest.raises(StartError) as refused:
        make(tmp_path, add)
    assert message in str(refused.value)
    assert str(tmp_path / "model.gguf") in str(refused.value)
