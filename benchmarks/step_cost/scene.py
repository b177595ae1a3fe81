"""A Llama of no size, and the plans that a router would send to decode so many rows with it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock_server.pb import engine_pb2 as pb
from transformers import LlamaConfig

from benchmarks.serving.random_model import save_tokenizer

BLOCK_SIZE = 16
PROMPT_LEN = 8
# Positions of a sequence: more than any measurement takes.
MAX_LEN = 1024
NUMS_ROWS = (1, 8, 64, 256)
MAX_ROWS = NUMS_ROWS[-1]
NUM_BLOCKS = MAX_ROWS * MAX_LEN // BLOCK_SIZE
# Flags of a shard.
SIZES = {
    "--max-sequence-len": MAX_LEN,
    "--num-slots": MAX_ROWS,
    "--num-blocks": NUM_BLOCKS,
    "--block-size": BLOCK_SIZE,
}
SAMPLINGS = {
    "greedy": pb.SamplingParams(top_p=1.0, typical_p=1.0, repetition_penalty=1.0),
    "drawn": pb.SamplingParams(
        temperature=0.8, top_k=40, top_p=0.9, typical_p=1.0, repetition_penalty=1.0, seed=7
    ),
}


def make_model(folder: Path) -> Path:
    """One layer, 16 wide. Its weights are made when it is loaded."""
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=256,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=MAX_LEN,
        bos_token_id=None,
        eos_token_id=None,
    )
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    save_tokenizer(folder)
    return folder


def plans(epoch: int, num_rows: int, sampling: str = "greedy") -> Iterator[bytes]:
    """One that admits all rows and computes their prompts, then decodes. Rows get blocks in time, not all at once."""
    slots = range(num_rows)
    admitted = [
        pb.Admit(
            slot=slot,
            token_ids=[1 + (slot + place) % 90 for place in range(PROMPT_LEN)],
            prompt_len=PROMPT_LEN,
            block_ids=[
                _block(slot, number) for number in range(1 + (PROMPT_LEN - 1 + _ahead(slot)) // BLOCK_SIZE)
            ],
            sampling=SAMPLINGS[sampling],
        )
        for slot in slots
    ]
    prompts = ([0] * num_rows, [PROMPT_LEN] * num_rows)
    yield _plan(epoch, 1, slots, *prompts, admitted=admitted)
    for step, position in enumerate(range(PROMPT_LEN, MAX_LEN - BLOCK_SIZE), start=2):
        growing = [slot for slot in slots if (position + _ahead(slot)) % BLOCK_SIZE == 0]
        appended = {
            "appended_slots": growing,
            "appended_counts": [1] * len(growing),
            "appended_blocks": [_block(slot, (position + _ahead(slot)) // BLOCK_SIZE) for slot in growing],
        }
        yield _plan(epoch, step, slots, [position] * num_rows, [1] * num_rows, **appended)


def _ahead(slot: int) -> int:
    """How many positions before it needs a block a slot gets it."""
    return slot % BLOCK_SIZE


def _block(slot: int, number: int) -> int:
    return slot * (MAX_LEN // BLOCK_SIZE) + number


def _plan(epoch: int, step: int, slots: range, starts: list[int], lens: list[int], **fields: Any) -> bytes:
    plan = pb.Plan(epoch=epoch, step=step, span_slots=slots, span_starts=starts, span_lens=lens, **fields)
    return plan.SerializeToString()
