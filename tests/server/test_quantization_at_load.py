"""A model that is quantized while it is read gives the tokens of the rounded numbers, on any number of shards."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import make_engine
from family_models import CASES
from penstock_kernels.reference.quantized_linear import dequantize
from penstock_server.base.config import AtLoad
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.network.quantization.at_load import TARGETS, QuantizationAtLoad
from penstock_server.network.quantization.rounding import to_int4_groups, to_int8_rows, to_table_blocks
from penstock_server.network.quantization.scheme import Source
from penstock_server.rpc.conversion import description_to_pb
from quantized_checks import check_ranks, check_tokens, refusal
from quantized_models import Packer, Quantized, Tensors, change_settings, healthy, quantize
from safetensors.torch import load_file, save_file
from thread_ranks import engines

CPU = torch.device("cpu")
NF4 = torch.tensor([
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0, 0.0795803, 0.1609302,
    0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
])  # fmt: skip
FP4 = torch.tensor([-12, -8, -6, -4, -3, -2, -0.0625, 0, 0.0625, 2, 3, 4, 6, 8, 12]) / 12


def int8(row: torch.Tensor) -> torch.Tensor:
    scale = row.abs().max() / 127
    return (row / scale).round() * scale


def fp8(row: torch.Tensor) -> torch.Tensor:
    scale = row.abs().max() / 448
    return (row / scale).to(torch.float8_e4m3fn).float() * scale


def int4(row: torch.Tensor) -> torch.Tensor:
    """No row of the tests is a whole number of groups of 128."""
    return torch.cat([_int4_group(group) for group in torch.split(row, 32)])


def _int4_group(group: torch.Tensor) -> torch.Tensor:
    largest = group[group.abs().argmax()]
    found = []
    for place in (-7.5, -8.1, -8.7, -9.3):
        scale = (largest / place).bfloat16().float()
        meant = (group / scale).round().clamp(-8, 7) * scale
        found.append((float((meant - group).square().sum()), meant))
    return min(found, key=lambda pair: pair[0])[1]


def table(numbers: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    def meant(row: torch.Tensor) -> torch.Tensor:
        blocks = [(block / block.abs().max(), block.abs().max()) for block in torch.split(row, 64)]
        nearest = [(share.unsqueeze(-1).sub(numbers).abs().argmin(-1), largest) for share, largest in blocks]
        return torch.cat([numbers[places] * largest for places, largest in nearest])

    return meant


MEANT: dict[AtLoad, Callable[[torch.Tensor], torch.Tensor]] = {
    "fp8": fp8,
    "int8": int8,
    "int4": int4,
    "bitsandbytes-nf4": table(NF4),
    "bitsandbytes-fp4": table(FP4),
}


def keeping(meant: Callable[[torch.Tensor], torch.Tensor], inputs_first: bool = False) -> Packer:
    """The checkpoint keeps the weights as they are; the oracle gets what they become. Of one matrix, or of several."""

    def pack(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        outputs_first = weight.mT if inputs_first else weight
        rows = [meant(row) for row in outputs_first.flatten(0, -2)]
        found = torch.stack(rows).view(outputs_first.shape)
        return {"weight": weight}, found.mT if inputs_first else found

    return pack


@pytest.fixture(scope="module")
def model(
    saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[AtLoad], Quantized]:
    made: dict[AtLoad, Quantized] = {}

    def make(name: AtLoad) -> Quantized:
        if name not in made:
            folder = tmp_path_factory.mktemp(name) / "model"
            made[name] = quantize(healthy(saved_model), folder, keeping(MEANT[name]), {})
            change_settings(folder, None)
        return made[name]

    return make


@pytest.mark.parametrize("name", MEANT)
def test_tokens_are_those_of_the_rounded_numbers(
    name: AtLoad, model: Callable[[AtLoad], Quantized], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    check_tokens(model(name), quantize=name)
    assert f"{name} at load" in caplog.text
    assert "in 16 bits: lm_head, model.embed_tokens" in caplog.text


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", ["int4", "int8", "bitsandbytes-nf4"])
def test_shards_have_the_codes_of_the_whole(
    name: AtLoad, size: int, model: Callable[[AtLoad], Quantized], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_ranks(model(name), size, monkeypatch, quantize=name)


# Families with experts, with several matrices in one tensor, and with inputs first: modules of which they are, and the
# tensors that are quantized.
FAMILIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "gpt2": (
        {"head_dim": None, "num_key_value_heads": None, "num_attention_heads": 4},
        r"c_attn|c_proj|c_fc",
        r"(c_attn|c_proj|c_fc)\.weight$",
    ),
    "qwen2_moe": (
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 44,
            "shared_expert_intermediate_size": 52,
        },
        "never",
        r"_proj\.weight$",
    ),
    "gpt_oss": (
        {"num_local_experts": 4, "sliding_window": 9, "num_experts_per_tok": 2, "head_dim": 8},
        r"experts",
        r"_proj(\.weight)?$",
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_and_matrices_with_inputs_first_are_quantized(
    family: str, saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, turned, chosen = FAMILIES[family]

    def pack(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        stored, meant = keeping(MEANT["int8"], re.search(turned, name) is not None)(name, weight)
        # All experts in one tensor, which has no module of its own.
        return (stored if weight.dim() == 2 else {"": weight}), meant

    of = healthy(saved_model, family=family, **options)
    of_family = quantize(of, tmp_path / "model", pack, {}, lambda name: re.search(chosen, name) is not None)
    change_settings(of_family.folder, None)
    check_tokens(of_family, quantize="int8")
    check_ranks(of_family, 2, monkeypatch, quantize="int8")


def test_experts_one_below_the_other_are_quantized(
    saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pack(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        if ".mlp." not in name:
            return keeping(MEANT["int8"])(name, weight)
        each = keeping(MEANT["int8"], name.endswith(".w2"))
        return {"": weight}, torch.cat([each(name, part)[1] for part in weight.chunk(6)])

    options = {key: value for key, value in CASES["dbrx"].items() if key != "family"}
    of = healthy(saved_model, family="dbrx", **options)
    chosen = r"Wqkv|out_proj|mlp\.[vw][12]$"
    of_family = quantize(of, tmp_path / "model", pack, {}, lambda name: re.search(chosen, name) is not None)
    change_settings(of_family.folder, None)
    check_tokens(of_family, quantize="int8")
    check_ranks(of_family, 2, monkeypatch, quantize="int8")


def test_what_chooses_experts_stays(
    saved_model: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make_engine(healthy(saved_model, family="qwen2_moe", **FAMILIES["qwen2_moe"][0]), quantize="int4")
    assert (
        "in 16 bits: lm_head, model.embed_tokens, model.layers.*.mlp.gate, model.layers.*.mlp.shared_expert_gate"
        in caplog.text
    )


@pytest.mark.parametrize("columns", [333, 384])
@pytest.mark.parametrize("name", TARGETS)
def test_any_part_has_the_codes_of_the_whole(name: AtLoad, columns: int, tmp_path: Path) -> None:
    torch.manual_seed(columns)
    weight = torch.randn(3000, columns).bfloat16()
    weight[5], weight[7, :200] = 0, 0
    save_file({"m.weight": weight, "t.weight": weight.T.contiguous()}, tmp_path / "model.safetensors")
    quantization = QuantizationAtLoad(name, Checkpoint.open(tmp_path), CPU)
    with quantization.stored:
        sources = Source("m", (3000, columns)), Source("t", (3000, columns), inputs_first=True)
        assert all(quantization.holds(source) for source in sources)
        everything = slice(0, 3000), slice(0, columns)
        whole = quantization.read(sources[0], *everything, None, CPU)
        expected = dequantize(whole)
        turned = quantization.read(sources[1], *everything, None, CPU)
        assert torch.equal(dequantize(turned), expected)
        # Kernels read rows.
        assert turned.codes.is_contiguous()
        for rows, start, stop in (
            (slice(1, 2), 0, columns),
            (slice(7, 1900), 31, 97),
            (slice(1, 3000, 2), 129, columns),
            (slice(4, 6), 64, 65),
        ):
            part = quantization.read(sources[0], rows, slice(start, stop), None, CPU)
            assert torch.equal(dequantize(part), expected[rows, start:stop])
            # Nothing but the part is kept.
            assert part.codes.untyped_storage().nbytes() <= part.shape[0] * (part.shape[1] + 1)
    assert f"take {whole.nbytes / 1e6:.1f}"[:5] in quantization.summary()


def test_the_router_is_told_what_came_of_it(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = healthy(saved_model)
    assert not description_to_pb(make_engine(folder).description).HasField("quantization")
    told = description_to_pb(make_engine(folder, quantize="int8").description).quantization
    assert told.format == "int8 at load (int8, a scale for every row)"
    assert list(told.plain) == ["lm_head", "model.embed_tokens"]
    num_weights = told.num_bytes_in_16_bits // 2
    # A scale of four bytes for each row, which is short here.
    assert (told.num_matrices, num_weights < told.num_bytes < 1.1 * num_weights) == (14, True)
    with engines(folder, 2, monkeypatch, quantize="int8") as ranks:
        parts = [description_to_pb(rank.description).quantization for rank in ranks]
    assert sum(part.num_bytes_in_16_bits for part in parts) == told.num_bytes_in_16_bits
    assert all(part.format == told.format and part.plain == told.plain for part in parts)


def test_all_ranks_say_the_same_of_experts_with_biases(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router refuses ranks that differ; the bias behind the experts is on one of them."""
    folder = healthy(saved_model, family="gpt_oss", **FAMILIES["gpt_oss"][0])
    with engines(folder, 2, monkeypatch, quantize="int8") as ranks:
        first, second = (description_to_pb(rank.description).quantization for rank in ranks)
    assert list(first.plain) == list(second.plain)
    assert not [name for name in first.plain if name.endswith("bias")]


def test_groups_of_int4_are_as_large_as_the_row_allows() -> None:
    sizes = {columns: TARGETS["int4"].group_size(columns) for columns in (128, 4096, 160, 72)}
    assert sizes == {128: 128, 4096: 128, 160: 32, 72: 32}


def test_rounding_is_as_good_as_it_claims() -> None:
    torch.manual_seed(0)
    weight = torch.randn(300, 1024)
    for limit, matrix in (
        (0.0082, to_int8_rows(weight)),
        (0.0985, to_int4_groups(weight, 128)),
        (0.0925, to_table_blocks(weight, tuple(NF4.tolist()))),
    ):
        error = (dequantize(matrix) - weight).square().mean().sqrt()
        assert float(error) < limit


def test_the_largest_and_the_smallest_numbers_stay_finite() -> None:
    ends = torch.tensor([[3e38, -3e38, 1e-45, 0.0] * 16, [1e-45] * 64, [0.0] * 64])
    for target in TARGETS.values():
        meant = dequantize(target.quantize(ends, target.group_size(64)))
        assert bool(meant.isfinite().all())
        assert not meant[2].any()


DECLARED = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}
# The format that the folder declares, the format that is asked for, and the words that the refusal must name.
CLASHES = [
    ("gptq", "awq", ("quant_method is 'gptq'", "--quantize asks for 'awq'")),
    ("gptq", "int4", ("quant_method is 'gptq'", "--quantize asks for 'int4'")),
    ("awq", "compressed-tensors", ("quant_method is 'awq'", "'compressed-tensors'")),
    ("awq", "bitsandbytes-nf4", ("quant_method is 'awq'", "'bitsandbytes-nf4'")),
    ("nf4", "bitsandbytes-fp4", ("bnb_4bit_quant_type is 'nf4'", "'bitsandbytes-fp4'")),
    ("int8", "bitsandbytes-nf4", ("load_in_4bit is False", "'bitsandbytes-nf4'")),
    ("nf4", "fp8", ("quant_method is 'bitsandbytes'", "'fp8'")),
    (None, "awq", ("quantization_config is missing", "--quantize asks for 'awq'", "--quantize int4")),
    (None, "marlin", ("quantization_config is missing", "'marlin'")),
]


@pytest.mark.parametrize(("declared", "asked", "names"), CLASHES)
def test_a_folder_that_is_otherwise_is_refused(
    declared: str | None,
    asked: str,
    names: tuple[str, ...],
    saved_model: Callable[..., Any],
    tmp_path: Path,
) -> None:
    folder = Path(shutil.copytree(healthy(saved_model), tmp_path / "model"))
    change_settings(folder, None if declared is None else DECLARED[declared])
    message = refusal(folder, quantize=asked)
    assert all(name in message for name in (*names, str(folder / "config.json")))


@pytest.mark.parametrize(
    ("declared", "asked"),
    [
        ("gptq", "gptq"),
        ("gptq", "marlin"),
        ("awq", "awq"),
        ("nf4", "bitsandbytes"),
        ("nf4", "bitsandbytes-nf4"),
    ],
)
def test_a_name_that_agrees_with_the_folder_changes_nothing(
    declared: str, asked: str, saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(healthy(saved_model), tmp_path / "model"))
    change_settings(folder, DECLARED[declared])
    # The weights of this folder are plain, which is the same complaint with the flag and without it.
    message = refusal(folder)
    assert "no matrix is quantized" in message
    assert refusal(folder, quantize=asked) == message


def test_exl2_is_refused_with_what_to_use(saved_model: Callable[..., Any]) -> None:
    message = refusal(healthy(saved_model), quantize="exl2")
    assert "--quantize exl2" in message
    assert "--quantize int4" in message


def test_what_cannot_be_quantized_at_load_is_refused(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    of = healthy(saved_model)
    assert "--quantize int8 is for models with a row" in refusal(
        of, quantize="int8", model_impl="transformers"
    )
    assert "--load-format dummy" in refusal(of, quantize="int8", load_format="dummy")
    folder = Path(shutil.copytree(of, tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 7] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    assert "model.layers.1.mlp.up_proj.weight" in refusal(folder, quantize="int4")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    assert "model.layers.1.mlp.up_proj.weight" in refusal(folder, quantize="int4")


def test_the_head_stays_in_16_bits(saved_model: Callable[..., Any]) -> None:
    folder = healthy(saved_model)
    assert not json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    decoder: Any = make_engine(folder, quantize="int8").model
    assert all(
        getattr(module, "matrix", None) is None for module in decoder.modules() if hasattr(module, "logits")
    )
