"""Tokens and log probabilities equal transformers' own, however the work is cut into steps."""

import random
from collections.abc import Callable
from typing import Any

import oracle
import pytest
from driver import Driver, Sequence, execute_on, make_engine
from penstock_server.engine.sampling_params import SamplingParams

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 50,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-tied-biased": {
        "family": "llama",
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama-multi-head": {"family": "llama", "num_key_value_heads": 8, "head_dim": 10},
    "llama3-rope": {"family": "llama", "rope_parameters": LLAMA3_ROPE},
    "llama-linear-rope": {
        "family": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
    },
    "llama-yarn-rope": {"family": "llama", "rope_parameters": YARN_ROPE},
    "llama-sharded-files": {"family": "llama", "max_shard_size": "100KB"},
    "qwen2": {"family": "qwen2", "tie_word_embeddings": True},
    "qwen2-window": {
        "family": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    },
    "qwen3": {"family": "qwen3"},
    "qwen3-tied": {"family": "qwen3", "tie_word_embeddings": True, "attention_bias": True},
}


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(301) for _ in range(rng.choice([1, 2, 5, 17, 33, 64]))] for _ in range(count)]


@pytest.mark.parametrize("name", MODELS)
def test_greedy_equals_transformers_alone_and_in_mixed_batches(
    name: str, saved_model: Callable[..., Any]
) -> None:
    model = saved_model(**MODELS[name])
    engine = make_engine(model.folder)
    engine.cache.spoil()  # nothing that was not written may be read
    expected = [oracle.greedy(model.oracle, prompt, 8) for prompt in prompts(5)]

    alone = Driver(execute_on(engine)).run([Sequence(prompts(5)[2], 8)])
    assert alone[0].output == expected[2][0]
    for seed in range(3):
        engine.clear()
        sequences = [Sequence(prompt, 8) for prompt in prompts(5)]
        for sequence, (tokens, logprobs) in zip(
            Driver(execute_on(engine)).run(sequences, seed), expected, strict=True
        ):
            assert sequence.output == tokens
            assert sequence.logprobs == pytest.approx(logprobs, abs=1e-3)


def test_prompt_logprobs_equal_transformers_in_chunks(saved_model: Callable[..., Any]) -> None:
    model = saved_model()
    params = SamplingParams(prompt_logprobs=True)
    for chunk in (1, 5, 64):
        found = [Sequence(prompt, 2, params) for prompt in prompts(3, seed=7)]
        for sequence in Driver(execute_on(make_engine(model.folder))).run(found, max_chunk=chunk):
            expected = oracle.prompt_logprobs(model.oracle, sequence.prompt)
            got = [sequence.prompt_logprobs[position] for position in range(1, len(sequence.prompt))]
            assert got == pytest.approx(expected, abs=1e-3)
            assert len(sequence.prompt_logprobs) == len(expected)


def test_prompt_tokens_come_with_the_most_likely_ones_in_their_place(saved_model: Callable[..., Any]) -> None:
    model = saved_model()
    counts = (0, 1, 4)
    for chunk in (3, 64):
        found = [
            Sequence(prompt, 2, SamplingParams(prompt_logprobs=True, num_top_logprobs=count))
            for prompt, count in zip(prompts(3, seed=7), counts, strict=True)
        ]
        Driver(execute_on(make_engine(model.folder))).run(found, max_chunk=chunk)
        for sequence, count in zip(found, counts, strict=True):
            assert list(sequence.prompt_tops) == list(range(1, len(sequence.prompt)))
            for position, (ids, logprobs) in sequence.prompt_tops.items():
                expected = oracle.next_logprobs(model.oracle, sequence.prompt[:position]).topk(count)
                assert ids == expected.indices.tolist()
                assert logprobs == pytest.approx(expected.values.tolist(), abs=1e-3)


def test_top_tokens_are_the_most_likely_ones(saved_model: Callable[..., Any]) -> None:
    model = saved_model()
    counts = (0, 3, 20)
    sequences = [
        Sequence(prompt, 3, SamplingParams(num_top_logprobs=count))
        for prompt, count in zip(prompts(3), counts, strict=True)
    ]
    for sequence, count in zip(
        Driver(execute_on(make_engine(model.folder))).run(sequences), counts, strict=True
    ):
        assert len(sequence.tops) == (3 if count else 0)
        for position, (ids, logprobs) in enumerate(sequence.tops):
            expected = oracle.next_logprobs(model.oracle, sequence.prompt + sequence.output[:position]).topk(
                count
            )
            assert ids == expected.indices.tolist()
            assert logprobs == pytest.approx(expected.values.tolist(), abs=1e-3)


def test_bfloat16_stays_close(saved_model: Callable[..., Any]) -> None:
    model = saved_model(initializer_range=0.1)
    engine = make_engine(model.folder, dtype="bfloat16")
    assert engine.description.dtype == "bfloat16"
    sequence = Driver(execute_on(engine)).run([Sequence(prompts(4)[3], 1)])[0]
    expected = oracle.next_logprobs(model.oracle, sequence.prompt)
    assert sequence.logprobs[0] == pytest.approx(float(expected[sequence.output[0]]), abs=0.1)


def test_batch_invariant_mode_gives_equal_bits_in_any_company(saved_model: Callable[..., Any]) -> None:
    model = saved_model()
    engine = make_engine(model.folder, batch_invariant=True)
    alone = [Driver(execute_on(engine)).run([Sequence(prompt, 8)])[0] for prompt in prompts(6)]
    engine.clear()
    together = Driver(execute_on(engine)).run([Sequence(prompt, 8) for prompt in prompts(6)])
    assert [sequence.logprobs for sequence in together] == [sequence.logprobs for sequence in alone]
    engine.clear()
    chunked = Driver(execute_on(engine)).run([Sequence(prompt, 8) for prompt in prompts(6)], seed=3)
    assert [sequence.output for sequence in chunked] == [sequence.output for sequence in alone]
