"""What loading takes, by the count of the operating system: nothing where weights stay in the files, else a rank's
share of the model and one tensor more.
"""

import subprocess
import sys
from pathlib import Path

import pytest
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
_LOAD = """
import sys, threading
from pathlib import Path
import torch
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.base.config import GroupConfig
from penstock_server.network.distributed import Group
from penstock_server.network.layers.placement import Placement

def anonymous():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024

def watch(stop, seen):
    while not stop.wait(0.001):
        seen.append(anonymous())

folder, num_ranks, dtype = Path(sys.argv[1]), int(sys.argv[2]), getattr(torch, sys.argv[3])
cpu = torch.device("cpu")
group = Group(GroupConfig(0, 1, None), cpu)
group.size = num_ranks
placement, checkpoint = Placement(group, dtype), Checkpoint.open(folder)
torch.empty(1).normal_().sum()
{prepare}
stop, seen = threading.Event(), [anonymous()]
watching = threading.Thread(target=watch, args=(stop, seen))
watching.start()
{load}
stop.set()
watching.join()
print(len(seen), max(*seen, anonymous()) - seen[0])
"""
_OWN = {
    "prepare": """
from penstock_server.network.decoder import Decoder
from penstock_server.architectures.registry import load_spec
from penstock_server.network.weights import load_weights
model = Decoder(load_spec(folder), placement, cpu)
""",
    "load": "load_weights(model, checkpoint, cpu)",
}
_BORROWED = {
    "prepare": """
from transformers import LlamaConfig, LlamaForCausalLM
from penstock_server.network.borrowed.loading import load_model
config = LlamaConfig.from_pretrained(folder)
""",
    "load": "load_model(LlamaForCausalLM, config, checkpoint, group, dtype=dtype)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    save(folder, TinyModel(options=_SIZES))
    return folder


def peak(folder: Path, num_ranks: int, dtype: str, loader: dict[str, str]) -> tuple[int, int]:
    """The most bytes of its own that a process holds beyond what it had before it loads; how often that was asked."""
    command = [sys.executable, "-c", _LOAD.format(**loader), str(folder), str(num_ranks), dtype]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
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
    # What is not converted would stay in the pages of the files, and not be seen.
    most, num_samples = peak(folder, 2, "bfloat16", _BORROWED)
    assert num_samples > 20
    assert share - _BESIDE < most < share + largest + _BESIDE
