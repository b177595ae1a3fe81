"""The memory that loading takes, counted by the system: nothing where weights stay in the files, else a rank's
share of the model and one tensor more; of quantized weights, what they take and some rows more.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gguf_models import served, write
from quantized_models import Tensors, change_settings
from safetensors.torch import load_file, save_file
from tiny_model import TinyModel, save

# Large enough that a share is far more than what an interpreter takes by the way.
_SIZES = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "head_dim": 64,
}
_BESIDE = 12 << 20
# Projections of attention (8 heads, 4 of keys, as `tiny_model` has them) and feed-forward, in float32.
_LAYER_BYTES = 4 * 512 * (2 * 512 + 2 * 256 + 3 * 2048)

# Pages of the files do not count: they are the page cache's, and given back when somebody needs them.
# Its limit is one of processor time, as others may want the processors; one that hangs is ended with its test.
_LOAD = """
import resource, sys, threading
resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
from pathlib import Path
import torch
from penstock_server.base.config import GroupConfig
from penstock_server.network.distributed import Group
from penstock_server.network.layers.placement import Placement

def anonymous():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024

seen = []

def watch(_frame, event, function):
    if event == "c_return" and isinstance(getattr(function, "__self__", None), torch.Tensor):
        seen.append(anonymous())

folder, num_ranks, dtype = Path(sys.argv[1]), int(sys.argv[2]), getattr(torch, sys.argv[3])
cpu = torch.device("cpu")
group = Group(GroupConfig(0, 1, None), cpu)
group.size = num_ranks
placement = Placement(group, dtype)
torch.empty(1).normal_().sum()
{prepare}
before = anonymous()
# Behind every call of a method of a tensor, however long loading takes.
threading.setprofile(watch)
sys.setprofile(watch)
{load}
sys.setprofile(None)
print(len(seen), max(*seen, anonymous()) - before)
"""
_OWN = {
    "prepare": """
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.network.decoder import Decoder
from penstock_server.architectures.registry import load_spec
from penstock_server.network.weights import load_weights
checkpoint = Checkpoint.open(folder)
model = Decoder(load_spec(folder), placement, cpu)
""",
    "load": "load_weights(model, checkpoint, cpu)",
}
_BORROWED = {
    "prepare": """
from transformers import LlamaConfig, LlamaForCausalLM
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.network.borrowed.loading import load_model
checkpoint = Checkpoint.open(folder)
config = LlamaConfig.from_pretrained(folder)
""",
    "load": "load_model(LlamaForCausalLM, config, checkpoint, group, dtype=dtype)",
}
# The bytes of some rows, as penstock_server reads or converts quantized weights: in float32, and codes of a byte.
_SOME_ROWS = 5 << 22
_QUANTIZED = {
    "prepare": """
from penstock_server.files.model_folder import open_folder
from penstock_server.network.decoder import Decoder
from penstock_server.network.quantization.at_load import QuantizationAtLoad
from penstock_server.network.quantization.quantization import StoredQuantization
from penstock_server.network.weights import load_weights
opened = open_folder(folder, quantize=sys.argv[4] if len(sys.argv) > 4 else None)
if opened.quantization is None:
    quantization = QuantizationAtLoad(opened.at_load, opened.checkpoint, cpu)
else:
    quantization = StoredQuantization(opened.quantization, opened.checkpoint)
model = Decoder(opened.spec, placement, cpu)
""",
    "load": "load_weights(model, opened.checkpoint, cpu, quantization)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    save(folder, TinyModel(options=_SIZES))
    return folder


def peak(folder: Path, num_ranks: int, dtype: str, loader: dict[str, str], *more: str) -> tuple[int, int]:
    """The most bytes of its own that a process holds beyond what it had before it loads; how often that was asked."""
    command = [sys.executable, "-c", _LOAD.format(**loader), str(folder), str(num_ranks), dtype, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    num_samples, most = map(int, done.stdout.split())
    return most, num_samples


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_rank_that_converts_needs_its_share_and_one_tensor(folder: Path, num_ranks: int) -> None:
    share = (folder / "model.safetensors").stat().st_size // num_ranks // 2
    # The part of the largest tensor that a rank reads: of the embedding.
    largest = 2 * _SIZES["vocab_size"] * _SIZES["hidden_size"] // num_ranks
    most, num_samples = peak(folder, num_ranks, "bfloat16", _OWN)
    assert num_samples > 20
    assert share - _BESIDE < most < share + largest + _BESIDE


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_weights_that_stay_in_the_files_need_no_memory(folder: Path, num_ranks: int) -> None:
    most, _ = peak(folder, num_ranks, "float32", _OWN)
    assert most < _BESIDE


def test_a_rank_of_a_borrowed_model_needs_its_share_and_one_tensor(folder: Path) -> None:
    layers = _SIZES["num_hidden_layers"] * _LAYER_BYTES
    # Embedding and head are no linear layers of the plan. Two bytes a number, of four in the file.
    share = ((folder / "model.safetensors").stat().st_size - layers // 2) // 2
    largest = 4 * _SIZES["vocab_size"] * _SIZES["hidden_size"]
    # Weights that are not converted would stay in the pages of the files, and not be counted.
    most, num_samples = peak(folder, 2, "bfloat16", _BORROWED)
    assert num_samples > 20
    assert share - _BESIDE < most < share + largest + _BESIDE


def _quantized_bytes(num_layers: int, bits: float) -> int:
    """The bytes of layers that `_SIZES` describes, with their scales."""
    return int(num_layers * _LAYER_BYTES / 32 * bits)


def _to_awq(folder: Path) -> None:
    """Random codes in the place of the layers' matrices."""
    stored: Tensors = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.startswith("model.layers.") or not name.endswith("_proj.weight"):
            stored[name] = weight.bfloat16()
            continue
        module, (outputs, inputs) = name.removesuffix(".weight"), weight.shape
        words = torch.randint(-(2**31), 2**31, (inputs + inputs // 128, outputs // 8), dtype=torch.int32)
        stored[f"{module}.qweight"], stored[f"{module}.qzeros"] = (
            words[:inputs].clone(),
            words[inputs:].clone(),
        )
        stored[f"{module}.scales"] = torch.rand(inputs // 128, outputs).half()
    save_file(stored, folder / "model.safetensors")
    change_settings(
        folder, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    )


def test_a_quantized_folder_needs_what_it_takes_and_one_matrix(tmp_path: Path) -> None:
    save(tmp_path, TinyModel(options=_SIZES))
    _to_awq(tmp_path)
    # Embedding and head stay in the file.
    share = _quantized_bytes(_SIZES["num_hidden_layers"], 4.25)
    most, _ = peak(tmp_path, 1, "bfloat16", _QUANTIZED)
    assert share - _BESIDE < most < share + _SOME_ROWS + _BESIDE


def test_what_is_quantized_at_load_needs_what_it_takes_and_some_rows(folder: Path) -> None:
    # Embedding and head become bfloat16.
    share = (
        _quantized_bytes(_SIZES["num_hidden_layers"], 4.13) + 4 * _SIZES["vocab_size"] * _SIZES["hidden_size"]
    )
    most, _ = peak(folder, 1, "bfloat16", _QUANTIZED, "int4")
    assert share - _BESIDE < most < share + _SOME_ROWS + _BESIDE


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose embedding, once dequantized, takes far more memory than some rows of it."""
    folder = tmp_path_factory.mktemp("vocabulary")
    save(folder, TinyModel(options={**_SIZES, "vocab_size": 65_536, "num_hidden_layers": 2}))
    return folder


def test_a_vocabulary_of_a_gguf_file_becomes_numbers_by_rows(
    large_vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def types(name: str) -> str:
        return "F32" if "norm" in name else "Q8_0"

    file = write(large_vocabulary, tmp_path / "model.gguf", types)
    made = served(file, tmp_path / "cache", monkeypatch)
    numbers = 65_536 * _SIZES["hidden_size"]
    # The head stays quantized.
    share = _quantized_bytes(2, 8.5) + 2 * numbers + numbers * 17 // 16
    most, _ = peak(made.folder, 1, "bfloat16", _QUANTIZED)
    assert share - _BESIDE < most < share + 2 * _SOME_ROWS + _BESIDE < share + 4 * numbers
