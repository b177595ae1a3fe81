"""After the warm-up no plan needs a variant of a kernel that is not compiled yet. Launches are recorded, not run."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from adapter_folder import tensors, write
from driver import Driver, Sequence, execute_on, make_engine
from family_models import CASES
from penstock_server.base.config import CudaConfig
from penstock_server.base.errors import ErrorCode, StartError
from penstock_server.engine.engine import Engine
from penstock_server.engine.limits import Limits
from penstock_server.engine.outcome import Outcome, SlotError
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.rehearsal import Rehearsal
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.engine.warm_up import plans, scenes_of_kernels

pytest.importorskip("triton")
from kernel_variants.recorder import recording_only
from kernel_variants.variant import Variant

NUM_SLOTS, NUM_BLOCKS = 80, 500
# The first layer and one behind another: more launch the same kernels again.
NUM_LAYERS = 2
# Windows, norms of heads, centred norms, positions that are learnt, experts and their biases.
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("qwen3", {}),
    ("mistral", {"sliding_window": 6}),
    ("cohere", {}),
    ("gpt2", {"head_dim": None, "num_key_value_heads": None}),
    ("qwen3_moe", {}),
    ("gpt_oss", {}),
]
# Compressed latents; states beside them, beside keys and values, and in the place of both: and the kernel of each kind.
KEPT_OTHERWISE = {
    "deepseek_v3": "_latent_attention_kernel",
    "deepseek_v32": "_choose_kernel",
    "qwen3_next": "_correct_one_kernel",
    "kimi_linear": "_correct_one_kernel",
    "falcon_h1": "_scan_one_kernel",
    "mamba2": "_scan_one_kernel",
    "mamba": "_select_kernel",
    "lfm2": "_convolve_one_kernel",
}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"kv_cache_dtype": "fp8"},
    {"batch_invariant": True},
    {"dtype": "float32"},
    {"cuda": CudaConfig((1, 2, 8, 40), prompt_graph_sizes=(16, 40, 100))},
    # Decodes are divided among programs.
    {"max_sequence_len": 1400, "max_step_tokens": 2048},
    {"max_sequence_len": 1400, "max_step_tokens": 2048, "batch_invariant": True},
]


def mixture(vocab_size: int, count: int) -> list[Sequence]:
    rng = random.Random(count)
    ids = [rng.randrange(vocab_size) for _ in range(100)]
    everything = SamplingParams(
        temperature=0.7, top_p=0.8, min_p=0.01, typical_p=0.9, repetition_penalty=1.2, num_top_logprobs=20,
        logit_bias_ids=tuple(range(5)), logit_bias_values=(1.0,) * 5, watermark_delta=0.1, watermark_gamma=0.2,
    )  # fmt: skip
    some = [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_k=5, seed=4),
        SamplingParams(presence_penalty=0.5),
        SamplingParams(min_new_tokens=3, suppressed_ids=(1, 2)),
        SamplingParams(logit_bias_ids=tuple(range(16)), logit_bias_values=(1.0,) * 16),
        SamplingParams(allowed_mask=b"\xff" * -(-vocab_size // 8)),
        SamplingParams(banned_ids=(1, 2, 3), banned_lens=(1, 2)),
        SamplingParams(prompt_logprobs=True, num_top_logprobs=9),
        *(SamplingParams(num_top_logprobs=number) for number in range(1, 21)),
        everything,
    ]
    lens = [1, 2, 3, 5, 7, 8, 9, 16, 17, 31, *(rng.randint(1, 40) for _ in range(count))][:count]
    return [
        Sequence([rng.choice(ids) for _ in range(length)], rng.randint(1, 6), some[number % len(some)])
        for number, length in enumerate(lens)
    ]


def warm_engine(folder: Path, **options: Any) -> Engine:
    options = {"dtype": "bfloat16", "max_step_tokens": 256, **options}
    sizes = {"num_slots": NUM_SLOTS, "num_blocks": NUM_BLOCKS, "max_sequence_len": 48}
    engine = make_engine(folder, **{**sizes, **options})
    Rehearsal(engine).compile()
    return engine


def serve(engine: Engine) -> None:
    """All kinds of plans: at once and alone, in odd chunks, preempted, with copies of blocks."""
    vocab_size = engine.slots.limits.vocab_size
    driver = Driver(execute_on(engine), NUM_SLOTS, NUM_BLOCKS)
    for at_once, seed, chunk in (
        (6, None, 10**9),
        (40, 3, 10**9),
        (11, 5, 10**9),
        (3, None, 4),
        (1, None, 10**9),
    ):
        waiting = mixture(vocab_size, 80 if at_once == 6 else at_once)
        while waiting:  # few at once: no more tokens than a step may have
            driver.run(waiting[:at_once], seed=seed, max_chunk=chunk)
            waiting = waiting[at_once:]
    longest = engine.slots.limits.max_sequence_len - 4
    for length in (longest, longest // 2, longest // 5):
        driver.run([Sequence([5] * length, 3)], max_chunk=engine.slots.limits.max_step_tokens)
        driver.run([Sequence([5] * length, 3), Sequence([5] * 9, 5)], max_chunk=30)
    for count in (1, 3, 70):
        driver.run([Sequence([5], 3) for _ in range(count)])
    driver.send(Plan(1, 0, copied_from=[0, 1, 2], copied_to=[3, 4, 5]))


@contextmanager
def nothing_new(seen: set[Variant]) -> Iterator[None]:
    warm = set(seen)
    yield
    new = [variant.label for variant in seen - warm]
    assert not new, "\n".join(new)


@pytest.mark.parametrize(
    ("family", "changes"), FAMILIES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_served_mixture_needs_no_new_variant(
    saved_model: Callable[..., Any], family: str, changes: dict[str, Any]
) -> None:
    folder = saved_model(family, num_hidden_layers=NUM_LAYERS, **changes).folder
    with recording_only() as seen:
        engine = warm_engine(folder)
        with nothing_new(seen):
            serve(engine)


@pytest.mark.parametrize("case", KEPT_OTHERWISE)
def test_latents_and_states_need_no_new_variant(saved_model: Callable[..., Any], case: str) -> None:
    folder = saved_model(**CASES[case]).folder
    with recording_only() as seen:
        engine = warm_engine(folder)
        assert KEPT_OTHERWISE[case] in {variant.kernel for variant in seen}
        with nothing_new(seen):
            serve(engine)


@pytest.mark.parametrize("max_step_tokens", [100, 2048])
def test_an_index_needs_no_new_variant(saved_model: Callable[..., Any], max_step_tokens: int) -> None:
    """However many queries a step has that do not see all of their contexts."""
    case = {**CASES["deepseek_v32"], "index_topk": 1300, "max_position_embeddings": 1500}
    folder = saved_model(**case).folder
    with recording_only() as seen:
        engine = warm_engine(folder, max_sequence_len=1400, max_step_tokens=max_step_tokens)
        driver = Driver(execute_on(engine), NUM_SLOTS, NUM_BLOCKS)
        with nothing_new(seen):
            for chunk in (1, 60, 90, 220, 300, 1100, 1390):
                driver.run([Sequence([5] * 1390, 3)], max_chunk=min(chunk, max_step_tokens))


@pytest.mark.parametrize("case", ["mamba2", "falcon_h1", "lfm2"])
def test_snapshots_need_no_new_variant(saved_model: Callable[..., Any], case: str) -> None:
    """Also where no layer has keys and values, of which blocks could be copied."""
    folder, prompt = saved_model(**CASES[case]).folder, [5] * 8
    with recording_only() as seen:
        engine = warm_engine(folder, num_snapshots=2)
        execute = execute_on(engine)
        with nothing_new(seen):
            first = Admit(0, prompt, 8, [0, 1, 2], SamplingParams())
            assert not execute(Plan(1, 1, admitted=[first], spans=[Span(0, 0, 4)], snapshots={0: 1})).errors
            other = Admit(1, prompt, 8, [0, 3, 4], SamplingParams(), snapshot=1)
            assert not execute(Plan(1, 2, admitted=[other], spans=[Span(1, 4, 4)])).errors


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_no_setting_makes_a_variant_that_is_new(
    saved_model: Callable[..., Any], options: dict[str, Any]
) -> None:
    folder = saved_model("llama", max_position_embeddings=1500, num_hidden_layers=NUM_LAYERS).folder
    with recording_only() as seen:
        engine = warm_engine(folder, **options)
        with nothing_new(seen):
            serve(engine)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_adapters_of_any_rank_need_no_new_variant(
    saved_model: Callable[..., Any], tmp_path: Path, dtype: str
) -> None:
    folder = saved_model("llama").folder  # as the adapters are
    with recording_only() as seen:
        engine = warm_engine(folder, dtype=dtype)
        with nothing_new(seen):
            adapters = [
                engine.slots.adapters.load(write(tmp_path / str(rank), tensors(rank)), "", "test")
                for rank in (1, 3, 16, 48)
            ]
            waiting = mixture(engine.slots.limits.vocab_size, 12)
            for number, sequence in enumerate(waiting):
                sequence.adapter_id = adapters[number % 4].adapter_id if number % 5 else ""
            Driver(execute_on(engine), NUM_SLOTS, NUM_BLOCKS).run(waiting, seed=3)
    assert {"_shrink_kernel", "_expand_kernel"} <= {variant.kernel for variant in seen}


def test_scenes_keep_to_the_limits() -> None:
    for num_slots, num_blocks, block_size, length, tokens in (
        (1, 1, 1, 2, 1), (1, 1, 16, 2, 2048), (8, 3, 4, 12, 5), (300, 4000, 16, 40_000, 8192), (7, 90, 16, 100, 64),
    ):  # fmt: skip
        limits = Limits(num_slots, num_blocks, block_size, 100, length, tokens)
        for scene in scenes_of_kernels(limits, has_experts=True, can_draft=True, num_chosen=20):
            first, *more = plans(scene, limits)
            assert all(sum(span.length for span in plan.spans) <= tokens for plan in more)
            held = [block for admit in first.admitted for block in admit.block_ids]
            assert len(held) == len(set(held)) <= num_blocks
            assert sum(span.length for span in first.spans) <= tokens
            assert len(first.admitted) <= num_slots
            assert max(span.length for span in first.spans) < length


@pytest.mark.parametrize("case", ["qwen3_moe", "falcon_h1"])
def test_every_scene_is_accepted(saved_model: Callable[..., Any], case: str) -> None:
    """Nothing is drafted for a slot with a state."""
    rehearsal = Rehearsal(make_engine(saved_model(**CASES[case]).folder, max_step_tokens=64))
    for scene in rehearsal.scenes():
        assert rehearsal.play(scene) == []


def test_a_shard_whose_first_step_fails_does_not_start(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(saved_model("llama").folder)

    class Failed:
        def resolve(self) -> Outcome:
            return Outcome(0, 1, errors=[SlotError(0, ErrorCode.KERNEL, "a kernel does not compile")])

    monkeypatch.setattr(engine, "launch", lambda _plan: Failed())
    with pytest.raises(StartError, match="the first step failed: a kernel does not compile"):
        Rehearsal(engine).warm_up()
