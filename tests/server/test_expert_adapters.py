"""Adapters of experts: in each of the ways in which PEFT saves them, tokens are those of its merged model."""

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_models
import pytest
import thread_ranks
import torch
from driver import make_engine
from penstock_server.base.errors import AdapterRefused
from safetensors.torch import load_file, save_file

pytest.importorskip("peft")
from peft_adapters import Adapter
from test_adapters import SIZES, Expected, Served, ask, check, load, save

# PEFT uses names of transformers that are to go.
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::RuntimeWarning"
)

BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
GRANITE = ["block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"]
CASES: dict[str, list[dict[str, Any]]] = {
    "qwen2_moe": [
        {"target_modules": ["q_proj"], "target_parameters": BOTH, "r": 3},
        {"target_modules": ["v_proj"], "r": 4},
        {"target_modules": [], "target_parameters": BOTH[1:], "r": 2, "use_rslora": True},
    ],
    "mixtral": [{"target_modules": ["q_proj", "o_proj"], "target_parameters": BOTH, "r": 4, "lora_alpha": 6}],
    "gpt_oss": [
        {"target_modules": ["o_proj"], "target_parameters": BOTH, "r": 3},
        {"target_modules": [], "target_parameters": BOTH[:1], "r": 5},
    ],
    "granitemoe": [
        {"target_modules": ["q_proj"], "target_parameters": GRANITE, "r": 3},
        {"target_modules": [], "target_parameters": GRANITE[1:], "r": 4},
    ],
    "granitemoehybrid": [{"target_modules": ["v_proj"], "target_parameters": GRANITE, "r": 2}],
}  # fmt: skip
# The names of experts in releases in which each expert had modules.
MODULES = r".*experts\.\d+\.(gate_proj|up_proj|down_proj)|.*q_proj"
# One rank, and two with a slice of every expert or with whole experts.
GROUPS = [(1, False), (2, False), (2, True)]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Expected]:
    made: dict[str, Expected] = {}

    def make(name: str) -> Expected:
        if name not in made:
            made[name] = ask(save(tmp_path_factory.mktemp(name), name, *CASES[name]))
        return made[name]

    return make


@pytest.mark.parametrize(
    ("name", "size", "is_whole"),
    [(name, *group) for name in CASES for group in GROUPS],
)
def test_rows_equal_the_merged_models(
    name: str,
    size: int,
    is_whole: bool,
    expected: Callable[[str], Expected],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    want = expected(name)
    with thread_ranks.engines(
        want.served.folder, size, monkeypatch, expert_parallel=is_whole, **SIZES
    ) as ranks:
        ids = [load(rank, want.served) for rank in ranks]
        for seed in (None, 1):
            for rank in ranks:
                rank.clear()
            check(thread_ranks.execute_on_all(ranks), want, ids[0], seed)


def test_ranks_without_experts_have_adapters_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(family_models.CASES, "three", {"family": "mixtral", "num_local_experts": 3})
    want = ask(save(tmp_path, "three", *CASES["mixtral"]))
    with thread_ranks.engines(want.served.folder, 4, monkeypatch, expert_parallel=True, **SIZES) as ranks:
        ids = [load(rank, want.served) for rank in ranks]
        check(thread_ranks.execute_on_all(ranks), want, ids[0], seed=1)


def with_inputs_as_outputs(pair: str, a: torch.Tensor, b: torch.Tensor, count: int) -> Tensors:
    """The layout of earlier releases of PEFT, which took the outputs of such a parameter for its inputs."""
    rank = len(a) // count
    down, up = a.view(count, rank, -1), b.view(len(b), rank, count).permute(2, 0, 1)
    first, second = up.mT.reshape(count * rank, -1), down.permute(2, 1, 0).reshape(a.shape[1], -1)
    return {f"{pair}lora_A.weight": first.contiguous(), f"{pair}lora_B.weight": second.contiguous()}


def by_module(pair: str, a: torch.Tensor, b: torch.Tensor, count: int) -> Tensors:
    """The layout of adapters of transformers before 5, where each expert had modules."""
    rank = len(a) // count
    down, up = a.view(count, rank, -1), b.view(len(b), rank, count).permute(2, 0, 1)
    found: Tensors = {}
    for expert in range(count):
        parts = {"down_proj": up[expert]}
        if "base_layer" in pair:
            gate, other = up[expert].chunk(2)
            parts = {"gate_proj": gate, "up_proj": other}
        for name, rows in parts.items():
            module = f"{pair.removesuffix('base_layer.')}{expert}.{name}"
            found[f"{module}.lora_A.weight"] = down[expert].clone()
            found[f"{module}.lora_B.weight"] = rows.clone()
    return found


def rewritten(
    adapter: Adapter,
    folder: Path,
    way: Callable[[str, torch.Tensor, torch.Tensor, int], Tensors],
    num_experts: int,
    **keys: Any,
) -> Adapter:
    """Copies the adapter; its experts are saved in another way."""
    shutil.copytree(adapter.folder, folder)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith("lora_A.weight") and ".experts." in name]:
        pair = name.removesuffix("lora_A.weight")
        a, b = tensors.pop(name), tensors.pop(f"{pair}lora_B.weight")
        tensors.update(way(pair, a, b, num_experts))
    save_file(tensors, file)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **keys}))
    return Adapter(folder, adapter.merged)


def with_inputs_as_outputs_in_two_modules(pair: str, a: torch.Tensor, b: torch.Tensor, count: int) -> Tensors:
    """The layout of Granite's experts in transformers before 5: a module for each parameter."""
    is_first = "base_layer" in pair
    parent = pair.partition("experts.")[0]
    return with_inputs_as_outputs(f"{parent}{'input' if is_first else 'output'}_linear.", a, b, count)


@pytest.mark.parametrize("size", [1, 2])
def test_granites_modules_of_earlier_releases_equal_the_merged_model(
    size: int, expected: Callable[[str], Expected], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = expected("granitemoe")
    way, names = with_inputs_as_outputs_in_two_modules, ["input_linear.weight", "output_linear.weight"]
    adapters = [
        rewritten(adapter, tmp_path / str(number), way, 4, target_parameters=names[number:])
        for number, adapter in enumerate(want.served.adapters)
    ]
    earlier = want.served._replace(adapters=adapters)
    with thread_ranks.engines(earlier.folder, size, monkeypatch, **SIZES) as ranks:
        ids = [load(rank, earlier) for rank in ranks]
        check(thread_ranks.execute_on_all(ranks), Expected(earlier, want.rows), ids[0], seed=2)


def with_magnitudes(adapter: Adapter, folder: Path, model: Any) -> Adapter:
    """An adapter of the modules of each expert with DoRA, and the model merged by its formula: PEFT has no modules."""
    shutil.copytree(adapter.folder, folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    keys = json.loads((folder / "adapter_config.json").read_text())
    merged, scale = copy.deepcopy(model), keys["lora_alpha"] / keys["r"]
    for name in [name for name in tensors if name.endswith("lora_A.weight")]:
        pair = name.removesuffix("lora_A.weight")
        delta = scale * tensors[f"{pair}lora_B.weight"] @ tensors[name]
        weight = weight_of(merged, pair.removeprefix("base_model.model.").removesuffix("."))
        magnitude = (weight + delta).norm(dim=1) * torch.empty(len(weight)).uniform_(0.5, 1.5)
        tensors[f"{pair}lora_magnitude_vector"] = magnitude
        with torch.no_grad():
            weight.copy_((weight + delta) * (magnitude / (weight + delta).norm(dim=1))[:, None])
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**keys, "use_dora": True}))
    return Adapter(folder, merged)


def weight_of(model: Any, module: str) -> torch.Tensor:
    """The weights of a module, or of one of the modules that experts had: a view."""
    found = re.fullmatch(r"(.*experts)\.(\d+)\.(\w+)", module)
    if found is None:
        return model.get_submodule(module).weight.data  # type: ignore[no-any-return]
    experts, number = model.get_submodule(found[1]), int(found[2])
    if found[3] == "down_proj":
        return experts.down_proj.data[number]  # type: ignore[no-any-return]
    return experts.gate_up_proj.data[number].chunk(2)[found[3] == "up_proj"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("size", "is_whole"), GROUPS)
def test_magnitudes_of_experts_equal_the_merged_model(
    size: int,
    is_whole: bool,
    expected: Callable[[str], Expected],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(5)
    served = expected("qwen2_moe").served
    options = {"target_parameters": None, "target_modules": MODULES}
    plain = rewritten(served.adapters[0], tmp_path / "plain", by_module, 6, **options)
    adapters = [with_magnitudes(plain, tmp_path / "dora", served.model), served.adapters[1]]
    want = ask(served._replace(adapters=adapters))
    with thread_ranks.engines(served.folder, size, monkeypatch, expert_parallel=is_whole, **SIZES) as ranks:
        ids = [load(rank, want.served) for rank in ranks]
        check(thread_ranks.execute_on_all(ranks), want, ids[0], seed=6)
    file = tmp_path / "dora" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.model.layers.0.mlp.experts.2.up_proj.lora_magnitude_vector"
    for spoilt, message in (({}, f"{name} is missing"), ({name: torch.ones(3)}, f"{name} has shape [3]")):
        save_file({**{key: it for key, it in tensors.items() if key != name}, **spoilt}, file)
        with pytest.raises(AdapterRefused, match=re.escape(message)):
            make_engine(served.folder, **SIZES).slots.adapters.load(tmp_path / "dora", "", "test")


@pytest.mark.parametrize("size", [1, 2])
def test_adapters_of_earlier_releases_equal_the_merged_models(
    size: int, expected: Callable[[str], Expected], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = expected("qwen2_moe")
    both, plain, last = want.served.adapters
    modules = {"target_parameters": None, "target_modules": MODULES}
    adapters = [
        rewritten(both, tmp_path / "modules", by_module, 6, **modules),
        plain,
        rewritten(last, tmp_path / "older", with_inputs_as_outputs, 6, peft_version="0.17.0"),
    ]
    earlier = Served(want.served.folder, want.served.model, adapters)
    with thread_ranks.engines(earlier.folder, size, monkeypatch, **SIZES) as ranks:
        ids = [load(rank, earlier) for rank in ranks]
        check(thread_ranks.execute_on_all(ranks), Expected(earlier, want.rows), ids[0], seed=2)


def test_what_does_not_fit_the_experts_is_refused_by_name(
    expected: Callable[[str], Expected], tmp_path: Path
) -> None:
    served = expected("qwen2_moe").served
    adapters = make_engine(served.folder, **SIZES).slots.adapters
    prefix = "base_model.model.model.layers.0.mlp.experts."

    def spoilt(number: int, name: str, tensor: torch.Tensor | None, **keys: Any) -> str:
        folder = tmp_path / str(number)
        rewritten(
            served.adapters[0],
            folder,
            lambda pair, a, b, _: {f"{pair}lora_A.weight": a, f"{pair}lora_B.weight": b},
            6,
            **keys,
        )
        tensors = load_file(folder / "adapter_model.safetensors")
        tensors.pop(prefix + name, None)
        if tensor is not None:
            tensors[prefix + name] = tensor
        save_file(tensors, folder / "adapter_model.safetensors")
        with pytest.raises(AdapterRefused) as refused:
            adapters.load(folder, "", "test")
        return str(refused.value)

    assert "experts.lora_B.weight is missing" in spoilt(1, "lora_B.weight", None)
    assert "expected some for each of 6 experts" in spoilt(2, "lora_A.weight", torch.ones(19, 44))
    assert "the model needs [18, 44]" in spoilt(3, "lora_A.weight", torch.ones(18, 45))
    assert "not finite" in spoilt(4, "lora_A.weight", torch.full((18, 44), float("nan")))
    assert "target_parameters: the tensors of" in spoilt(5, "x", None, target_parameters=BOTH[:1])
    assert "of a kind that is not supported" in spoilt(6, "lora_magnitude_vector", torch.ones(72))
