"""Tokens a second of a 110M-parameter Llama over HTTP, one request and eight at once.

Compared with transformers `generate`, and with what the memory allows: every weight is read once for each step.
"""

import asyncio
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from benchmarks.figure import Figure
from benchmarks.server import Server
from benchmarks.serving import random_model
from benchmarks.streams import complete

TITLE = "A 110M-parameter Llama over HTTP: 128 tokens in, 64 out (CPU)"
_REPEATS = 3
_PROMPT_LEN = 128
_NUM_NEW = 64
# Concurrent requests, and the times of transformers' tokens/s in one batch of as many.
_FLOORS = {1: 1.7, 8: 2.2}


def measure() -> list[Figure]:
    """Measures both in turn, several times, so that other load of the machine affects both alike."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        torch.manual_seed(7)
        LlamaForCausalLM(random_model.config_110m()).save_pretrained(folder)
        random_model.save_tokenizer(folder)
        return [figure for dtype in ("float32", "bfloat16") for figure in _measure_dtype(folder, dtype)]


def _measure_dtype(folder: Path, dtype: str) -> list[Figure]:
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    figures = [_memory(reference, dtype)]
    with Server(f"--model-id={folder}", f"--dtype={dtype}") as server:
        for count, floor in _FLOORS.items():
            figures += compare(server, reference, f"{dtype}, {count} at once", count, floor)
    return figures


def compare(server: Server, reference: Any, name: str, count: int, floor: float) -> list[Figure]:
    """Tokens a second of so many requests at once, beside a batch of transformers, in turn."""
    asyncio.run(tokens_per_second(server.address, count, -1))
    _theirs(reference, 1, 8)
    pairs = [
        (asyncio.run(tokens_per_second(server.address, count, number)), _theirs(reference, count, _NUM_NEW))
        for number in range(_REPEATS)
    ]
    ratios = [ours / theirs for ours, theirs in pairs]
    note = f"median of {_REPEATS}, {min(ratios):.2f} to {max(ratios):.2f}; {torch.get_num_threads()} threads"
    return [
        Figure(f"{name}: times transformers' tokens/s", median(ratios), at_least=floor, note=note),
        Figure(f"{name}: Penstock", median(ours for ours, _ in pairs), "tokens/s"),
        Figure(
            f"{name}: transformers, a batch of {count}",
            median(theirs for _, theirs in pairs),
            "tokens/s",
        ),
    ]


def _memory(reference: Any, dtype: str) -> Figure:
    """Tokens a second of one request if weights were read as fast as by a sum, and nothing else took time."""
    weights = torch.cat([parameter.detach().flatten() for parameter in reference.parameters()]).view(
        torch.float32
    )
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        weights.sum()
        times.append(time.perf_counter() - started)
    note = f"{weights.nbytes / 1e9:.2f} GB at {weights.nbytes / 1e9 / min(times):.1f} GB/s"
    return Figure(f"{dtype}: what the memory allows one request", 1 / min(times), "tokens/s", note=note)


async def tokens_per_second(address: tuple[str, int], count: int, number: int) -> float:
    """The tokens per second of `count` concurrent requests.

    One character is one token; prompts differ from the first on, so that no prefix is in the cache.
    """
    prompts = [chr(65 + number + 8 * index) * _PROMPT_LEN for index in range(count)]
    started = time.perf_counter()
    done = await asyncio.gather(*(complete(address, prompt, _NUM_NEW) for prompt in prompts))
    seconds = time.perf_counter() - started
    assert all(stream.usage["prompt_tokens"] == _PROMPT_LEN for stream in done)
    assert all(stream.usage["completion_tokens"] == _NUM_NEW for stream in done)
    return count * _NUM_NEW / seconds


def _theirs(reference: Any, count: int, num_new: int) -> float:
    ids = torch.randint(0, 95, (count, _PROMPT_LEN))
    started = time.perf_counter()
    output = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_new,
        min_new_tokens=num_new,
        do_sample=False,
        pad_token_id=0,
    )
    assert output.shape[1] == _PROMPT_LEN + num_new
    return count * num_new / (time.perf_counter() - started)
