"""Tokens a second of 16 concurrent streams, against the same model through transformers, one request at a time."""

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any

import penstock_server
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from benchmarks.figure import Figure
from benchmarks.server import Server
from benchmarks.streams import complete

TITLE = "16 streams compared with transformers `generate` (demo model, CPU, float32)"
_MODEL = Path(penstock_server.__file__).parent / "demo_model"
_NUM_STREAMS = 16
_NUM_TOKENS = 64
_REPEATS = 3


def measure() -> list[Figure]:
    """Measures both in turn, several times, so that other load of the machine affects both alike."""
    reference = _Transformers()
    with Server() as server:
        asyncio.run(_ours(server.address, -1))
        pairs = [
            (asyncio.run(_ours(server.address, number)), reference.rate(_prompts(number)))
            for number in range(_REPEATS)
        ]
    ratios = [ours / theirs for ours, theirs in pairs]
    spread = f"median of {_REPEATS}, {min(ratios):.1f} to {max(ratios):.1f}; {torch.get_num_threads()} threads each"
    return [
        Figure("times the tokens/s of transformers", median(ratios), at_least=4, note=spread),
        Figure("Penstock, 16 streams", median(ours for ours, _ in pairs), "tokens/s"),
        Figure("transformers, one by one", median(theirs for _, theirs in pairs), "tokens/s"),
    ]


def _prompts(number: int) -> list[str]:
    """Different every time, so that no prefix is in the cache."""
    return [f"What is {number + 2} plus {index + 11}? Tell me how." for index in range(_NUM_STREAMS)]


async def _ours(address: tuple[str, int], number: int) -> float:
    started = time.perf_counter()
    streams = [complete(address, prompt, _NUM_TOKENS) for prompt in _prompts(number)]
    done = await asyncio.gather(*streams)
    seconds = time.perf_counter() - started
    assert all(stream.usage["completion_tokens"] == _NUM_TOKENS for stream in done)
    return _NUM_STREAMS * _NUM_TOKENS / seconds


class _Transformers:
    """The same model in transformers: the same weights, data type and number of threads."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(_MODEL / "tokenizer.json"))
        self._model: Any = AutoModelForCausalLM.from_pretrained(_MODEL, dtype=torch.float32)
        self._generate("warm up")

    def rate(self, prompts: list[str]) -> float:
        started = time.perf_counter()
        num_tokens = sum(self._generate(prompt) for prompt in prompts)
        assert num_tokens == len(prompts) * _NUM_TOKENS
        return num_tokens / (time.perf_counter() - started)

    def _generate(self, prompt: str) -> int:
        ids = torch.tensor([self._tokenizer.encode(prompt).ids])
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=_NUM_TOKENS,
            min_new_tokens=_NUM_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        return int(output.shape[1] - ids.shape[1])
