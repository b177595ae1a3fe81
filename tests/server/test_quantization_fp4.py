"""Checkpoints of floats of 4 bits give the tokens of what their numbers mean, on any number of shards."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import make_engine
from penstock_kernels import ExpertMatrices
from penstock_server.network.decoder import Decoder
from quantized_checks import check_ranks, check_refusal, check_tokens, refusal
from quantized_formats import Format, Made
from quantized_models import Packer, Quantized, Tensors, change_settings, healthy, quantize
from safetensors.torch import load_file, save_file
from thread_ranks import engines

NUMBERS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# Inputs of all matrices are whole blocks, but those of a shard are not.
SIZES = {"hidden_size": 96, "intermediate_size": 192, "head_dim": 8}


def round_to_fp4(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, two a byte, and what they mean."""
    codes = (numbers.abs().unsqueeze(-1) - NUMBERS).abs().argmin(-1)
    meant = NUMBERS[codes] * numbers.sign()
    codes = torch.where(numbers < 0, codes + 8, codes).to(torch.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, meant


def nvfp4(names: tuple[str, str, str], is_divided: bool) -> Packer:
    def pack(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        blocks = torch.unflatten(weight, 1, (-1, 16))
        whole = weight.abs().max() / (448 * 6)
        scales = (blocks.abs().amax(-1) / 6 / whole).clamp(min=2**-6).to(torch.float8_e4m3fn)
        effective = (scales.float() * whole).unsqueeze(-1)
        codes, meant = round_to_fp4(blocks / effective)
        one = (1 / whole if is_divided else whole).reshape(1) if is_divided else whole
        tensors = {names[0]: codes.flatten(1), names[1]: scales, names[2]: one}
        return {**tensors, "input_scale": torch.ones(())}, (meant * effective).flatten(1)

    return pack


def round_to_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [.., blocks, 16], bytes of scales, and what they mean."""
    blocks = torch.unflatten(weight, -1, (-1, 32))
    exponents = (blocks.abs().amax(-1) / 6).clamp(min=2**-20).log2().ceil()
    codes, meant = round_to_fp4(blocks / exponents.exp2().unsqueeze(-1))
    return codes, (exponents + 127).to(torch.uint8), (meant * exponents.exp2().unsqueeze(-1)).flatten(-2)


def mxfp4(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scales, meant = round_to_mxfp4(weight)
    return {"weight_packed": codes.flatten(-2), "weight_scale": scales}, meant


def mxfp8(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    blocks = torch.unflatten(weight, 1, (-1, 32))
    exponents = (blocks.abs().amax(-1) / 448).clamp(min=2**-20).log2().ceil()
    scales = exponents.exp2().unsqueeze(-1)
    codes = (blocks / scales).to(torch.float8_e4m3fn)
    stored = {"weight": codes.flatten(1), "weight_scale": (exponents + 127).to(torch.uint8)}
    return stored, (codes.float() * scales).flatten(1)


def experts(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """All experts in one tensor, inputs last."""
    codes, scales, meant = round_to_mxfp4(weight.transpose(1, 2))
    return {"_blocks": codes, "_scales": scales}, meant.transpose(1, 2)


def are_experts(name: str) -> bool:
    return name.endswith(("gate_up_proj", "down_proj"))


def compressed(stored_as: str, weights: dict[str, Any]) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": {"type": "float", "symmetric": True, "dynamic": False, **weights},
    }
    return {
        "quant_method": "compressed-tensors", "format": stored_as, "config_groups": {"group_0": group},
        "ignore": ["re:.*lm_head"],
    }  # fmt: skip


NVFP4 = compressed("nvfp4-pack-quantized", {"num_bits": 4, "strategy": "tensor_group", "group_size": 16})
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.gate"]}
MODELS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "NVFP4 of compressed-tensors": (
        nvfp4(("weight_packed", "weight_scale", "weight_global_scale"), is_divided=True),
        NVFP4,
    ),
    "NVFP4 of ModelOpt": (nvfp4(("weight", "weight_scale", "weight_scale_2"), is_divided=False), MODELOPT),
    "MXFP4 of compressed-tensors": (
        mxfp4,
        compressed("mxfp4-pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
    ),
    "MXFP8 of compressed-tensors": (
        mxfp8,
        compressed("mxfp8-quantized", {"num_bits": 8, "strategy": "group", "group_size": 32}),
    ),
    "MXFP8 of ModelOpt": (mxfp8, {**MODELOPT, "quant_algo": "MXFP8"}),
}


FORMAT = Format(MODELS, ("NVFP4 of ModelOpt", "MXFP4 of compressed-tensors"), SIZES)


@pytest.fixture(scope="module")
def model(made: Made) -> Callable[[str], Quantized]:
    return partial(made, FORMAT)


@pytest.fixture(scope="module")
def gpt_oss(saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    return published(saved_model, tmp_path_factory.mktemp("gpt_oss"), num_local_experts=4)


def published(saved_model: Callable[..., Any], parent: Path, num_local_experts: int) -> Quantized:
    """The model in the published form: experts have 4 bits, all else 16."""
    torch.manual_seed(0)
    options = {"num_local_experts": num_local_experts, "num_experts_per_tok": 2, "sliding_window": 9}
    of = healthy(saved_model, family="gpt_oss", **options, **SIZES)
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": skipped}
    return quantize(of, parent / "model", experts, settings, are_experts)


def test_gpt_oss_is_served_as_it_was_published(gpt_oss: Quantized, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    check_tokens(gpt_oss)
    line = next(message for message in caplog.messages if "matrices take" in message)
    assert line.startswith("mxfp4 in blocks of 32: 16 matrices take ")
    assert "model.layers.*.self_attn.q_proj" in line


@pytest.mark.parametrize("size", [2, 4])
def test_experts_may_be_cut_inside_a_block(
    size: int, gpt_oss: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_ranks(gpt_oss, size, monkeypatch)


def test_experts_may_be_whole_or_on_other_ranks_alone(
    gpt_oss: Quantized, saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_ranks(gpt_oss, 4, monkeypatch, expert_parallel=True)
    # All that is quantized is on other ranks than the first.
    few = published(saved_model, tmp_path, num_local_experts=3)
    with engines(few.folder, 4, monkeypatch, expert_parallel=True) as ranks:
        first: Any = ranks[0].model
        assert first.layers[0].feed_forward.experts.gate_up_matrices == ()
        assert len({rank.model.capturable for rank in ranks}) == 1
    check_ranks(few, 4, monkeypatch, expert_parallel=True)


def test_settings_of_modelopt_may_lie_in_a_file_of_their_own(
    model: Callable[[str], Quantized], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(model("NVFP4 of ModelOpt").folder, tmp_path / "model"))
    change_settings(folder, None)
    settings = {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": ["lm_head"],
    }
    written = {"producer": {"name": "modelopt", "version": "0.33"}, "quantization": settings}
    (folder / "hf_quant_config.json").write_text(json.dumps(written))
    check_tokens(Quantized(folder, model("NVFP4 of ModelOpt").oracle))


DOWN = "model.layers.1.mlp.down_proj"
# The model, what is changed in the settings, the tensors, and what the refusal names.
SPOILED: dict[str, tuple[str, dict[str, Any], Callable[[Tensors], Any], str]] = {
    "another algorithm": ("NVFP4 of ModelOpt", {"quant_algo": "NVFP4_AWQ"}, lambda _: None, "NVFP4_AWQ"),
    "no algorithm": ("NVFP4 of ModelOpt", {"quant_algo": None}, lambda _: None, "quant_algo"),
    "a scale before the product": (
        "NVFP4 of ModelOpt",
        {},
        lambda tensors: tensors.update({f"{DOWN}.pre_quant_scale": torch.ones(192)}),
        f"{DOWN}.pre_quant_scale",
    ),
    "no scale of the whole matrix": (
        "NVFP4 of ModelOpt",
        {},
        lambda tensors: tensors.pop(f"{DOWN}.weight_scale_2"),
        f"{DOWN}.weight_scale_2",
    ),
    "a divisor of nothing": (
        "NVFP4 of compressed-tensors",
        {},
        lambda tensors: tensors[f"{DOWN}.weight_global_scale"].zero_(),
        f"{DOWN}.weight_global_scale",
    ),
    "a scale that is no number": (
        "NVFP4 of ModelOpt",
        {},
        lambda tensors: tensors[f"{DOWN}.weight_scale"].view(torch.uint8)[3].fill_(0x7F),
        f"{DOWN}.weight_scale",
    ),
    "a power that is no number": (
        "MXFP4 of compressed-tensors",
        {},
        lambda tensors: tensors[f"{DOWN}.weight_scale"][3].fill_(255),
        f"{DOWN}.weight_scale",
    ),
    "blocks of another size": (
        "MXFP4 of compressed-tensors",
        {"format": "nvfp4-pack-quantized"},
        lambda _: None,
        "group_size",
    ),
    "skipped modules are packed": ("NVFP4 of ModelOpt", {"ignore": ["*mlp*"]}, lambda _: None, "*mlp*"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_does_not_fit_is_refused_with_its_reason(
    name: str, model: Callable[[str], Quantized], tmp_path: Path
) -> None:
    of, changes, spoil, names = SPOILED[name]
    check_refusal(model(of), {**MODELS[of][1], **changes}, spoil, names, tmp_path)


def test_inputs_that_are_no_whole_blocks_are_refused(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(healthy(saved_model), tmp_path / "model"))
    change_settings(folder, NVFP4)
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{DOWN}.weight_packed"] = tensors.pop(f"{DOWN}.weight").to(torch.uint8)
    save_file(tensors, folder / "model.safetensors")
    assert "whole blocks of 16" in refusal(folder)


def test_codes_stay_in_the_file_where_experts_share_a_tensor(gpt_oss: Quantized) -> None:
    decoder: Any = make_engine(gpt_oss.folder).model
    experts = decoder.layers[0].feed_forward.experts
    assert [len(parts) for parts in experts.gate_up_matrices] == [2] * 4
    # Gates and the others lie in turns.
    assert all(part.codes.stride(0) == 96 for parts in experts.gate_up_matrices for part in parts)


def test_graphs_hold_steps_of_experts_of_few_bits_that_lie_alike(gpt_oss: Quantized) -> None:
    pytest.importorskip("triton")
    decoder: Any = make_engine(gpt_oss.folder).model
    assert decoder.capturable
    # Where the same model would be on a GPU.
    decoder._device = torch.device("cuda")
    assert decoder.capturable
    # Codes of one expert begin within a byte: it is computed by the reference, which asks who was chosen.
    experts = decoder.layers[0].feed_forward.experts
    first, *others = experts.down_matrices
    experts.down_matrices = ExpertMatrices((replace(first, first=1), *others))
    assert not decoder.capturable


def test_no_rank_captures_what_another_cannot(gpt_oss: Quantized, monkeypatch: pytest.MonkeyPatch) -> None:
    """They capture sums together: one that began alone would wait for ever."""
    with engines(gpt_oss.folder, 2, monkeypatch) as ranks:
        assert all(rank.graphs is not None for rank in ranks)
    monkeypatch.setattr(Decoder, "capturable", property(lambda model: model.group.rank == 0))
    with engines(gpt_oss.folder, 2, monkeypatch) as ranks:
        assert all(rank.graphs is None for rank in ranks)
