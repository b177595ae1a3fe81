"""A model whose layers all have a sliding window serves sequences longer than its whole KV cache."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from e2e.launched import Launched
from e2e.models import greedy, make_model
from transformers import MistralConfig, MistralForCausalLM

WINDOW = 24
LONG = "many words that are told one after the other " * 4
NUM_NEW = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windowed")
    return make_model(
        folder, config_class=MistralConfig, model_class=MistralForCausalLM, sliding_window=WINDOW
    )


def ask(server: Launched, prompt: str) -> str:
    body = {"inputs": prompt, "parameters": {"max_new_tokens": NUM_NEW}}
    status, reply = server.post("/generate", body)
    assert status == 200, reply
    return str(reply["generated_text"])


@pytest.mark.parametrize("pool", [48, 160])
def test_sequences_longer_than_the_cache_equal_transformers(
    launch: Callable[..., Launched], model: Path, pool: int
) -> None:
    flags = (f"--model-id={model}", "--dtype=float32", "--poison-cache", f"--max-batch-total-tokens={pool}")
    server = launch(*flags).wait_until_serving()
    info: dict[str, Any] = json.loads(server.get("/info")[1])
    assert (info["max_batch_total_tokens"], info["max_total_tokens"]) == (pool, 256)
    prompts = [LONG, LONG + "and on", LONG[7:]]
    assert min(len(prompt) for prompt in prompts) + NUM_NEW > 160
    with ThreadPoolExecutor(len(prompts)) as threads:
        texts = list(threads.map(lambda prompt: ask(server, prompt), prompts))
    assert texts == [greedy(model, prompt, NUM_NEW)[1] for prompt in prompts]
    # And after them, with whatever of their prefixes is still cached.
    assert ask(server, LONG) == texts[0]
