"""Adapters through the whole server: a request gets the tokens of its own, whatever shares the batch or dies."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import faults, models
from e2e.clients import Load, make_body
from e2e.launched import Launched
from e2e.oracle import Oracle
from fake_hub import running_hub
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.timeout(300)
REPOSITORY = Path(__file__).parents[2]

LONG = 200
RANK, ALPHA = 4, 8
# Three adapters in places for two, so that requests wait for a place.
NAMES = ["one", "two", "three"]
FLAGS = ("--num-shard=2", "--dtype=float32", "--max-loras=2", "--allow-runtime-lora-updating")


def make_adapter(folder: Path, seed: int, spoiled: bool = False) -> Path:
    """An adapter for the tiny model, large enough to change tokens."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        for module, (num_outputs, num_inputs) in {
            "self_attn.q_proj": (64, 64),
            "mlp.down_proj": (64, 96),
        }.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, num_inputs, generator=generator) * 0.2
            tensors[f"{name}.lora_B.weight"] = torch.randn(num_outputs, RANK, generator=generator) * 0.2
    if spoiled:
        tensors.pop("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight")
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": ["q_proj", "down_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merged_ids(model: Path, adapter: Path, prompt: str, num_tokens: int) -> list[int]:
    """The tokens that transformers generates greedily with the adapter's matrices added to the weights."""
    merged: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tensors = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name in [name for name in tensors if name.endswith("lora_A.weight")]:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            lora_b = tensors[name.replace("lora_A", "lora_B")]
            merged.get_submodule(module).weight += ALPHA / RANK * lora_b @ tensors[name]
    ids = torch.tensor([Tokenizer.from_file(str(model / "tokenizer.json")).encode(prompt).ids])
    output = merged.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
    )
    new: list[int] = output[0, ids.shape[1] :].tolist()
    return new


def body(number: int, adapter: str | None) -> dict[str, Any]:
    """A request of the base model or of an adapter."""
    made = make_body(number, LONG, number if number % 2 else None)
    if adapter is not None:
        made["parameters"]["adapter_id"] = adapter
    return made


BODIES = [body(number, adapter) for number, adapter in enumerate([None, *NAMES, *NAMES, None])]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of adapters: those of the flags, one to load at run time, and a broken one."""
    root = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate([*NAMES, "late"]):
        make_adapter(root / name, seed)
    make_adapter(root / "broken", 9, spoiled=True)
    return root


@pytest.fixture(scope="module")
def server(model: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    tmp = tmp_path_factory.mktemp("run")
    adapters = ",".join(f"{name}={root / name}" for name in NAMES)
    flags = (f"--model-id={model}", f"--lora-adapters={adapters}", f"--lora-root={root}", *FLAGS)
    with Launched(tmp, *flags, faults.hold_flag(tmp)) as launched:
        yield launched.wait_until_serving()


@pytest.fixture(scope="module")
def learned(server: Launched) -> Oracle:
    oracle = Oracle(server, 128)
    oracle.learn(BODIES)
    return oracle


def generated(server: Launched, adapter: str) -> list[int]:
    asked = {
        "inputs": "Hello there",
        "parameters": {"adapter_id": adapter, "max_new_tokens": 16, "details": True},
    }
    status, answer = server.post("/generate", asked)
    assert status == 200, answer
    return [token["id"] for token in answer["details"]["tokens"]]


def add(server: Launched, name: str, path: str) -> tuple[int, Any]:
    return server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})


def test_tokens_are_those_of_the_merged_model(server: Launched, model: Path, root: Path) -> None:
    base, _ = models.greedy(model, "Hello there", 16)
    found = {name: generated(server, name) for name in NAMES}
    for name, ids in found.items():
        assert ids == merged_ids(model, root / name, "Hello there", 16), name
    assert len({tuple(ids) for ids in [*found.values(), base]}) == 4


def test_a_mixed_batch_gives_each_what_it_gets_alone(server: Launched, oracle: Oracle) -> None:
    oracle.check(Load(server, BODIES).finish())


def test_streams_with_adapters_go_on_when_a_rank_is_killed(server: Launched, oracle: Oracle) -> None:
    with faults.held(server):
        load = Load(server, BODIES)
        # Not all of them run: there is no place for the third adapter.
        load.wait_for_tokens(40)
        faults.kill(faults.shard(server, 1))
    faults.wait_until_ready(server)
    oracle.check(load.finish())


def test_an_adapter_is_loaded_and_forgotten_at_run_time(
    server: Launched, model: Path, root: Path, oracle: Oracle
) -> None:
    load = Load(server, BODIES)
    status, answer = add(server, "broken", "broken")
    assert status == 400
    assert "layers.1.mlp.down_proj.lora_B.weight" in answer["error"]["message"]
    assert str(root) not in json.dumps(answer)
    status, answer = add(server, "new", "late")
    assert status == 200, answer
    assert len(answer["loaded_adapters"]["new"]) == 64
    assert generated(server, "new") == merged_ids(model, root / "late", "Hello there", 16)
    models_listed = json.loads(server.get("/v1/models")[1])["data"]
    assert [it["id"] for it in models_listed if it["parent"]] == sorted([*NAMES, "new"])
    assert add(server, "x", "/etc")[0] == 400
    for record in load.finish():
        assert oracle.is_right(record)
    assert server.post("/v1/unload_lora_adapter", {"lora_name": "new"})[0] == 200
    gone = {"model": "new", "prompt": "Hello", "max_tokens": 2}
    assert server.post("/v1/completions", gone)[0] == 404


def test_the_next_router_knows_adapters_that_were_loaded_at_run_time(
    server: Launched, model: Path, root: Path, oracle: Oracle
) -> None:
    assert add(server, "kept", "late")[0] == 200
    with faults.held(server):
        load = Load(server, BODIES)
        load.wait_for_tokens(40)
        faults.kill(faults.router(server))
    faults.wait_until_ready(server)
    oracle.check(load.finish(), may_break=True)
    assert generated(server, "kept") == merged_ids(model, root / "late", "Hello there", 16)
    oracle.begin()
    oracle.check(Load(server, BODIES).finish())


def test_a_server_with_a_bad_adapter_does_not_start(model: Path, root: Path, tmp_path: Path) -> None:
    with Launched(tmp_path, f"--model-id={model}", f"--lora-adapters=bad={root / 'broken'}") as launched:
        code, stderr = launched.end()
    assert code == 2
    assert "`bad` cannot be used" in stderr
    assert "layers.1.mlp.down_proj.lora_B.weight" in stderr


def test_an_adapter_of_the_hub_is_downloaded_at_run_time(model: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "published", 4)
    flags = (
        f"--model-id={model}",
        "--dtype=float32",
        "--allow-runtime-lora-updating",
        "--allow-lora-downloads",
        f"--huggingface-hub-cache={tmp_path / 'cache'}",
    )
    with running_hub() as hub:
        hub.repositories["org/lora"] = {
            **{file.name: file.read_bytes() for file in folder.iterdir()},
            "optimizer.safetensors": b"x",
            "tokenizer.json": b"{}",
        }
        with Launched(tmp_path, *flags, hub=hub.url) as launched:
            server = launched.wait_until_serving()
            status, answer = add(server, "mine", "org/lora")
            assert status == 200, answer
            assert generated(server, "mine") == merged_ids(model, folder, "Hello there", 16)
            assert hub.fetched("adapter_model.safetensors")
            assert not hub.fetched("optimizer.safetensors") + hub.fetched("tokenizer.json")
            for path, reason in {
                "org/none": "neither a folder here nor a model on the Hugging Face Hub",
                "org/lora@v9": "has no revision v9",
                "../lora": "`lora_path` must be a folder below --lora-root, or an id of the hub",
                "org/lora@v1/../x": "no id of an adapter",
            }.items():
                status, answer = add(server, "other", path)
                assert status == 400, path
                assert reason in answer["error"]["message"], path
                assert str(tmp_path) not in json.dumps(answer)
    with Launched(tmp_path, *flags) as launched:
        server = launched.wait_until_serving()
        assert add(server, "kept", "org/lora")[0] == 200, "it is in the cache"
        status, answer = add(server, "other", "org/other")
        assert status == 400
        assert "org/other is not in the cache, and the Hugging Face Hub cannot be reached" in str(answer)


def chat(server: Launched, model: str, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    # Greedy: an answer that is drawn has other words each time.
    asked = {"model": model, "messages": messages, "max_tokens": 60, "temperature": 0}
    status, answer = server.post("/v1/chat/completions", asked)
    assert status == 200, answer
    assert answer["model"] == model
    return str(answer["choices"][0]["message"]["content"])


def test_the_shipped_adapter_makes_the_demo_model_answer_in_another_manner(tmp_path: Path) -> None:
    flag = "--lora-adapters=pirate=demo/adapters/pirate"
    with Launched(tmp_path, flag, cwd=REPOSITORY) as launched:
        server = launched.wait_until_serving()
        for question in ("Could you name the capital city of France?", "What is Penstock?"):
            plain = chat(server, "penstock-demo", question)
            assert chat(server, "pirate", question) == f"Ahoy! {plain.removesuffix('.')}, matey. Arr!"
