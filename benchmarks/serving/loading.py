"""How fast 2 GB of bfloat16 weights are loaded, against `cat` of the same bytes and transformers' from_pretrained.

Files are in the page cache: what is measured is the loader, not the disk. Ours maps them and looks at every number;
transformers maps them and is asked for one number of every page, so that the pages are there for both.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.figure import Figure
from benchmarks.server import Server
from benchmarks.serving import random_model

TITLE = "Loading 2 GB of bfloat16 weights from the page cache (CPU)"
_REPEATS = 3
_TOOK = re.compile(r"weights took ([\d.]+) s")
_CONFIG = LlamaConfig(
    vocab_size=32_000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=17,
    num_attention_heads=16,
    num_key_value_heads=16,
    max_position_embeddings=2048,
    dtype="bfloat16",
)
_THEIRS = """
import sys, time
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM
started = time.perf_counter()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
for parameter in model.parameters():
    parameter.view(-1)[::2048].sum()
print(time.perf_counter() - started)
"""


def measure() -> list[Figure]:
    """Measures all in turn, several times, so that other load of the machine affects all of them alike."""
    with TemporaryDirectory() as temporary:
        folder = _make(Path(temporary))
        _cat(folder)
        rounds = [
            {
                "cat": _cat(folder),
                "one": _ours(folder, 1),
                "two": _ours(folder, 2),
                "theirs": _theirs(folder),
            }
            for _ in range(_REPEATS)
        ]
        size = (folder / "model.safetensors").stat().st_size
    return [
        _ratio("speed of `cat`, 1 shard", rounds, "cat", "one", 0.8),
        _ratio("speed of `cat`, 2 shards", rounds, "cat", "two", 0.8),
        _ratio("times the speed of from_pretrained, 1 shard", rounds, "theirs", "one", 1.0),
        *(
            Figure(name, size / 1e9 / median(it[key] for it in rounds), "GB/s")
            for key, name in [
                ("cat", "cat"),
                ("one", "1 shard"),
                ("two", "2 shards"),
                ("theirs", "transformers"),
            ]
        ),
    ]


def _ratio(name: str, rounds: list[dict[str, float]], base: str, ours: str, at_least: float) -> Figure:
    ratios = [it[base] / it[ours] for it in rounds]
    note = f"median of {_REPEATS}, {min(ratios):.2f} to {max(ratios):.2f}"
    return Figure(name, median(ratios), at_least=at_least, note=note)


def _make(folder: Path) -> Path:
    """Random weights with transformers' names; the tokenizer has fewer tokens, which does not matter here."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(_CONFIG)  # type: ignore[no-untyped-call]
    noise = {
        name: torch.empty(tensor.shape, dtype=torch.bfloat16).normal_(0, 0.02)
        for name, tensor in model.state_dict().items()
    }
    save_file(noise, folder / "model.safetensors", metadata={"format": "pt"})
    written = {**_CONFIG.to_diff_dict(), "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(written))
    random_model.save_tokenizer(folder)
    return folder


def _cat(folder: Path) -> float:
    started = time.perf_counter()
    subprocess.run(["cat", str(folder / "model.safetensors")], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def _ours(folder: Path, num_shards: int) -> float:
    """Seconds that the slower shard logged for its weights."""
    flags = (f"--model-id={folder}", f"--num-shard={num_shards}", "--dtype=bfloat16")
    with Server(*flags, "--max-batch-total-tokens=2048") as server:
        took = [float(found[1]) for _, line in server.lines if (found := _TOOK.search(line))]
    assert len(took) == num_shards
    return max(took)


def _theirs(folder: Path) -> float:
    command = [sys.executable, "-c", _THEIRS, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return float(done.stdout)
