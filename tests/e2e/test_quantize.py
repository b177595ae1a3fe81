"""`--quantize` through the whole system: a model in 16 bits becomes int8 while it is read, on one shard and on two."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from e2e import faults
from e2e.conftest import Launch
from e2e.launched import Launched, wait_until
from e2e.models import greedy
from safetensors.torch import load_file, save_file

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def rounded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the numbers that codes and scales mean."""
    folder = Path(shutil.copytree(model, tmp_path_factory.mktemp("rounded") / "model"))
    tensors = load_file(folder / "model.safetensors")
    for name, weight in tensors.items():
        if name.endswith("_proj.weight"):
            scales = weight.abs().amax(1, keepdim=True) / 127
            tensors[name] = (weight / scales).round() * scales
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


# With two shards, the cache that two shards wrote is read by two other shards.
@pytest.mark.parametrize(("num_shard", "from_cache"), [(1, False), (2, False), (2, True)])
def test_a_model_is_quantized_while_it_is_read(
    num_shard: int, from_cache: bool, launch: Launch, model: Path, rounded: Path, cache: Path
) -> None:
    flags = f"--model-id={model}", f"--num-shard={num_shard}", "--dtype=float32", "--quantize=eetq"
    server = launch(*flags, f"--quantize-cache={cache}").wait_until_serving()
    ids, text = greedy(rounded, PROMPT, 24)
    status, reply = server.post(
        "/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 24, "details": True}}
    )
    assert status == 200, reply
    assert [token["id"] for token in reply["details"]["tokens"]] == ids
    assert reply["generated_text"] == text
    said = "eetq at load (int8, a scale for every row)" + (", from the cache" if from_cache else "")
    assert f"{said}: 14 matrices take" in server.stderr
    told = json.loads(server.get("/info")[1])["quantization"]
    # The sum of both shards: 12 matrices of 64 inputs and two of 96, in two layers.
    num_weights = 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 96)
    assert told["num_bytes_in_16_bits"] == 2 * num_weights
    assert num_weights < told["num_bytes"] < 1.1 * num_weights
    assert (told["num_matrices"], told["modules_in_16_bits"]) == (14, ["lm_head", "model.embed_tokens"])
    assert told["from_cache"] is from_cache
    assert len(list(cache.glob("*/*.safetensors"))) == (1 if num_shard == 1 else 3)


def is_ready(server: Launched, replica: int) -> bool:
    """Whether the shards of a replica serve."""
    ready: bool = json.loads(server.get("/stats")[1])["replicas"][replica]["ready"]
    return ready


def test_shards_come_back_from_the_cache_that_they_made(launch: Launch, model: Path, tmp_path: Path) -> None:
    """And the second replica may find there what the first one made."""
    flags = f"--model-id={model}", "--num-replicas=2", "--dtype=float32", "--quantize=int8"
    server = launch(*flags, f"--quantize-cache={tmp_path}").wait_until_serving()
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}}
    expected = server.post("/generate", body)
    assert expected[0] == 200
    for replica in range(2):
        killed = faults.shard_of(server, replica)
        faults.kill(killed)
        wait_until(partial(faults.is_gone, killed), 60)
        wait_until(partial(is_ready, server, replica), 60)
    assert "for good" not in server.stderr
    assert server.post("/generate", body) == expected


def test_a_name_that_the_folder_contradicts_ends_the_start(launch: Launch, model: Path) -> None:
    code, stderr = launch(f"--model-id={model}", "--quantize=awq").end()
    assert code == 1
    assert f"{model}/config.json: quantization_config is missing" in stderr
    assert "--quantize asks for 'awq'" in stderr
    assert "Traceback" not in stderr
