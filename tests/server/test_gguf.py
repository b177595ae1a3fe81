"""GGUF files give the tokens of what their numbers mean, on any number of shards."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from gguf_models import Written, matrices_of, served, write
from penstock_kernels.reference.quantized_linear import dequantize
from penstock_server.architectures.fields import Fields
from penstock_server.base.errors import StartError
from penstock_server.files.gguf.block_types import BLOCK_TYPES
from penstock_server.files.gguf.folder import make_folder
from penstock_server.files.model_folder import open_folder
from penstock_server.network.quantization.gguf import Gguf
from penstock_server.network.quantization.scheme import Source
from penstock_server.network.quantization.stored import Stored
from penstock_server.resolve import resolve
from quantized_checks import check_ranks, check_tokens, refusal
from quantized_models import healthy

# Heads and feed-forward layers that two, three and four shards divide inside a block: of 32 numbers, and of 256.
SMALL = {"hidden_size": 96, "intermediate_size": 288, "head_dim": 8}
LARGE = {"hidden_size": 768, "intermediate_size": 768, "head_dim": 64}
# Types of blocks of 256.
IN_256 = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")


@pytest.fixture(scope="module")
def file(
    saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Written]:
    """A Llama whose layers have matrices of a type."""
    made: dict[str, Written] = {}
    folder = tmp_path_factory.mktemp("gguf")

    def make(kind: str) -> Written:
        if kind not in made:
            of = healthy(saved_model, **(LARGE if kind in IN_256 else SMALL))
            made[kind] = write(of, folder / f"{kind}.gguf", matrices_of(kind))
        return made[kind]

    return make


# Where in a block of a type a scale is, and its bytes of what is no number.
NOT_A_NUMBER = {
    "Q4_0": (0, b"\x00\x7e"),
    "Q4_1": (2, b"\x00\x7c"),
    "Q8_0": (0, b"\x00\xfc"),
    "MXFP4": (0, b"\xff"),
    "Q4_K": (2, b"\x01\x7c"),
    "Q6_K": (208, b"\x00\x7e"),
}


@pytest.mark.parametrize("kind", NOT_A_NUMBER)
def test_scales_that_are_no_numbers_are_refused(
    kind: str, file: Callable[[str], Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = Path(shutil.copy(file(kind).file, tmp_path / "spoilt.gguf"))
    folder = served(Written(spoilt, None), tmp_path, monkeypatch).folder
    checkpoint = open_folder(folder).checkpoint
    assert checkpoint is not None
    entry = checkpoint.entries["model.layers.1.mlp.up_proj.weight"]
    at, found = NOT_A_NUMBER[kind]
    content = bytearray(spoilt.read_bytes())
    # In its last block.
    begin = entry.end - next(one.bytes for one in BLOCK_TYPES.values() if one.name == kind) + at
    content[begin : begin + len(found)] = found
    spoilt.write_bytes(content)
    message = refusal(folder)
    assert str(spoilt) in message
    assert "tensor model.layers.1.mlp.up_proj.weight holds numbers that are not finite" in message


@pytest.mark.parametrize("kind", [kind.name for kind in BLOCK_TYPES.values()])
def test_numbers_are_those_of_the_package(
    kind: str, file: Callable[[str], Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, whichever part is read."""
    monkeypatch.setattr("penstock_server.network.quantization.gguf._MAX_NUMBERS", 10_000)
    model = served(file(kind), tmp_path, monkeypatch)
    checkpoint = open_folder(model.folder).checkpoint
    assert checkpoint is not None
    with Stored(checkpoint) as stored:
        for module in ("self_attn.k_proj", "mlp.down_proj"):
            name = f"model.layers.1.{module}"
            expected = model.oracle.state_dict()[f"{name}.weight"]
            source = Source(name, tuple(expected.shape))
            half, width = len(expected) // 2, expected.shape[1]
            for rows, columns in (
                (slice(0, len(expected)), slice(0, width)),
                (slice(half, half + 8), slice(24, 90)),
            ):
                if stored.is_in_16_bits(f"{name}.weight"):
                    found = stored.read(f"{name}.weight")[rows, columns].float()
                else:
                    scheme = Gguf(Fields({}, tmp_path)).scheme(source, stored)
                    found = dequantize(scheme.read(source, stored, rows, columns))
                assert torch.equal(found, expected[rows, columns])


@pytest.mark.parametrize(
    "kind", ["F32", "F16", "BF16", "Q4_0", "Q8_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
)
def test_tokens_are_those_of_what_the_numbers_mean(
    kind: str, file: Callable[[str], Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_tokens(served(file(kind), tmp_path, monkeypatch))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q4_K"])
def test_shards_may_begin_inside_a_block(
    kind: str, size: int, file: Callable[[str], Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_ranks(served(file(kind), tmp_path, monkeypatch), size, monkeypatch)


# Families beside Llama, and what the options of their tiny models are.
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "norm_topk_prob": True,
    },
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"tie_word_embeddings": True, "sliding_window": 9, "query_pre_attn_scalar": 8},
    "gemma3_text": {"tie_word_embeddings": True, "sliding_window": 9, "query_pre_attn_scalar": 8},
    "phi3": {"sliding_window": 9},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_have_the_tokens_of_transformers(
    family: str, saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = healthy(saved_model, family=family, **SMALL, **FAMILIES[family])
    written = write(of, tmp_path / "model.gguf", matrices_of("Q8_0"))
    check_ranks(served(written, tmp_path, monkeypatch), 2, monkeypatch)


REFUSED: dict[str, tuple[Callable[[GGUFWriter], Any], str]] = {
    "an unknown key": (
        lambda writer: writer.add_float32("llama.logit_scale", 2.0),
        "llama.logit_scale is 2.0",
    ),
    "another architecture": (
        lambda writer: writer.add_string("general.architecture", "mamba"),
        "general.architecture is 'mamba'",
    ),
    "another scaling": (
        lambda writer: writer.add_string("llama.rope.scaling.type", "su"),
        "llama.rope.scaling.type is 'su'",
    ),
    "no heads": (
        lambda writer: writer.add_uint32("llama.attention.head_count", 0),
        "llama.attention.head_count is 0",
    ),
    "values of another size": (
        lambda writer: writer.add_uint32("llama.attention.value_length", 16),
        "llama.attention.value_length is 16",
    ),
    "layers of several sizes": (
        lambda writer: writer.add_array("llama.feed_forward_length", [288, 96]),
        "llama.feed_forward_length is [288, 96]",
    ),
    "a matrix that nobody needs": (
        lambda writer: writer.add_tensor("blk.0.attn_rot_embd.weight", np.zeros((4, 32), np.float32)),
        "tensor blk.0.attn_rot_embd.weight",
    ),
    "one layer more": (
        lambda writer: writer.add_tensor("blk.2.attn_norm.weight", np.zeros(96, np.float32)),
        "tensor blk.2.attn_norm.weight",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:Duplicated key name")
def test_what_is_not_known_is_refused_with_its_key(
    name: str, saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, message = REFUSED[name]
    file = tmp_path / "model.gguf"
    written = write(healthy(saved_model, **SMALL), file, matrices_of("F32"), add)
    with pytest.raises(StartError) as refused:
        served(written, tmp_path, monkeypatch)
    assert message in str(refused.value)
    assert str(file) in str(refused.value)


def test_a_folder_is_served_that_has_one_file(
    file: Callable[[str], Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    given = tmp_path / "models"
    given.mkdir()
    shutil.copy(file("Q8_0").file, given / "one.gguf")
    found = resolve(str(given))
    assert found.folder == make_folder(given / "one.gguf")
    assert found.tokenizer == found.folder / "tokenizer.json"
    shutil.copy(file("Q8_0").file, given / "two.gguf")
    with pytest.raises(StartError, match=r"several GGUF files: one\.gguf, two\.gguf"):
        resolve(str(given))
