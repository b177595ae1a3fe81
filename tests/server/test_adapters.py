"""LoRA adapters: each row of a mixed batch gives what PEFT's merged model gives, computed by transformers."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import oracle
import pytest
import thread_ranks
import tiny_model
from driver import Driver, Execute, Sequence, execute_on, make_engine
from family_models import CASES
from penstock_server.engine.engine import Engine
from penstock_server.engine.sampling_params import SamplingParams

pytest.importorskip("peft")
from peft_adapters import Adapter, save_adapter, unmerged

# PEFT uses names of transformers that are to go.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
NUM_NEW = 4


class Served(NamedTuple):
    """A model's folder, the model, and adapters for it."""

    folder: Path
    model: Any
    adapters: list[Adapter]


def prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(301) for _ in range(length)] for length in (3, 19, 9)]


def save(folder: Path, name: str, *options: dict[str, Any]) -> Served:
    """A model of a family, and an adapter for each of the options."""
    choices = dict(CASES[name])
    recipe = tiny_model.TinyModel(choices.pop("family"), choices)
    model = tiny_model.save(folder / "model", recipe)
    adapters = [
        save_adapter(folder / f"adapter-{number}", model, number, **each)
        for number, each in enumerate(options)
    ]
    return Served(folder / "model", model, adapters)


def load(engine: Engine, served: Served) -> list[str]:
    return [engine.slots.adapters.load(adapter.folder, "", "test").adapter_id for adapter in served.adapters]


class Expected(NamedTuple):
    """Prompts of the base model and of every adapter, and what is to come of each."""

    served: Served
    # The number of the adapter, or None; the prompt; tokens and their log probabilities.
    rows: list[tuple[int | None, list[int], list[int], list[float]]]


def ask(served: Served) -> Expected:
    """Ask transformers for the base model and PEFT's merged models."""
    rows = []
    for number, model in [(None, served.model), *((n, a.merged) for n, a in enumerate(served.adapters))]:
        rows += [(number, prompt, *oracle.greedy(model, prompt, NUM_NEW)) for prompt in prompts()]
    return Expected(served, rows)


def check(execute: Execute, want: Expected, ids: list[str], seed: int | None = None) -> None:
    """Compute all rows together, in wild steps with a seed."""
    sequences = [
        Sequence(prompt, NUM_NEW, adapter_id="" if number is None else ids[number])
        for number, prompt, _, _ in want.rows
    ]
    Driver(execute, num_slots=24, num_blocks=160).run(sequences, seed)
    for sequence, (_, _, tokens, logprobs) in zip(sequences, want.rows, strict=True):
        assert not sequence.errors
        assert sequence.output == tokens
        assert sequence.logprobs == pytest.approx(logprobs, abs=1e-3)


SIZES = {"num_slots": 24, "num_blocks": 160, "max_sequence_len": 100}
# Every linear layer, and some of them with another rank.
EVERY = {"target_modules": "all-linear", "r": 5, "lora_alpha": 10}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama-biased": {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 8, "use_rslora": True},
    "gpt2": {"target_modules": ["c_attn", "c_proj"], "r": 3, "fan_in_fan_out": True},
    "falcon-40b": {"target_modules": ["query_key_value"], "r": 6},
    "gpt_neox": {"target_modules": r".*\.(query_key_value|dense_h_to_4h)", "r": 4},
    "phi3": {"target_modules": ["qkv_proj", "gate_up_proj"], "r": 7, "exclude_modules": r".*\.1\.mlp.*"},
    "gemma2": {"target_modules": ["o_proj", "k_proj"], "r": 2, "layers_to_transform": [0, 2]},
    "cohere-normed": {
        "target_modules": ["q_proj", "k_proj", "up_proj"], "r": 4, "lora_alpha": 6,
        "rank_pattern": {"q_proj": 9, r"layers\.1\.self_attn\.k_proj": 1}, "alpha_pattern": {"up_proj": 3},
    },
    "starcoder2": {"target_modules": ["c_fc", "v_proj"], "r": 16},
    "qwen2_moe": {"target_modules": ["q_proj", "shared_expert_gate", "shared_expert.down_proj"], "r": 4},
}  # fmt: skip


# Adapters with more than two matrices, on models whose layers differ: biased and not, fused, transposed.
KINDS: dict[str, list[dict[str, Any]]] = {
    "llama-biased": [
        {"target_modules": "all-linear", "r": 3, "use_dora": True, "use_rslora": True},
        {"target_modules": ["q_proj", "o_proj"], "r": 4, "bias": "all"},
        {"target_modules": ["v_proj", "down_proj"], "r": 4, "bias": "lora_only", "use_dora": True},
        {"target_modules": ["q_proj", "up_proj", "down_proj"], "r": 4, "lora_bias": True},
        {"target_modules": ["lm_head", "k_proj"], "r": 5},
        {"target_modules": ["lm_head"], "r": 2, "use_dora": True},
    ],
    "gpt2": [
        {"target_modules": ["c_attn", "c_proj"], "r": 3, "fan_in_fan_out": True, "use_dora": True},
        {"target_modules": ["c_attn", "mlp.c_proj"], "r": 3, "fan_in_fan_out": True, "bias": "lora_only"},
    ],
    "falcon-40b": [{"target_modules": "all-linear", "r": 4, "use_dora": True}],
    "cohere-normed": [{"target_modules": "all-linear", "r": 4, "use_dora": True}],
    "deepseek_v3": [
        {"target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"], "r": 4},
    ],
    "llama4_text": [
        {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "shared_expert.down_proj"], "r": 4},
    ],
}  # fmt: skip


# Norms of their own: of each place and kind, beside an adapter that leaves them alone.
NORMS: dict[str, list[dict[str, Any]]] = {
    "llama-biased": [
        {"target_modules": ["q_proj"], "r": 3, "modules_to_save": ["input_layernorm", "model.norm"]},
        {"target_modules": ["v_proj"], "r": 4},
        {"target_modules": ["v_proj"], "r": 2, "modules_to_save": ["post_attention_layernorm", "embed_tokens"]},
    ],
    "gemma2": [
        {"target_modules": ["q_proj"], "r": 3, "modules_to_save": ["post_feedforward_layernorm", "norm"]},
    ],
    "gpt2": [
        {"target_modules": ["c_attn"], "r": 3, "fan_in_fan_out": True, "modules_to_save": ["ln_1", "ln_f"]},
        {"target_modules": ["c_attn"], "r": 3, "fan_in_fan_out": True, "bias": "all"},
    ],
    "falcon-40b": [{"target_modules": ["dense"], "r": 3, "modules_to_save": ["ln_mlp", "ln_attn"]}],
    # Norms of queries and keys: in one op with rotation, before and after it, by head, and over all heads and ranks.
    "qwen3": [{"target_modules": ["q_proj"], "r": 3, "modules_to_save": ["q_norm", "k_norm"]}],
    "gemma3_text": [{"target_modules": ["q_proj"], "r": 3, "modules_to_save": ["norm"]}],
    "hunyuan_v1_dense": [{"target_modules": ["q_proj"], "r": 3, "modules_to_save": ["query_layernorm"]}],
    "cohere-normed": [{"target_modules": ["q_proj"], "r": 3, "modules_to_save": ["k_norm"]}],
    "persimmon": [{"target_modules": ["dense"], "r": 3, "modules_to_save": ["q_layernorm"], "bias": "all"}],
    "stablelm-parallel": [{"target_modules": ["q_proj"], "r": 3, "modules_to_save": ["q_layernorm"]}],
    "olmo2": [{"target_modules": ["q_proj"], "r": 3, "modules_to_save": ["q_norm", "k_norm"]}],
    # Inside mixers.
    "deepseek_v3": [
        {"target_modules": ["o_proj"], "r": 3, "modules_to_save": ["q_a_layernorm", "kv_a_layernorm"]}
    ],
    "qwen3_next": [{"target_modules": ["out_proj"], "r": 3, "modules_to_save": ["linear_attn.norm", "k_norm"]}],
    "bamba": [{"target_modules": ["q_proj"], "r": 3, "modules_to_save": ["mamba.norm"]}],
    "jamba": [{"target_modules": ["q_proj"], "r": 3, "modules_to_save": ["dt_layernorm", "c_layernorm"]}],
}  # fmt: skip


NORMS_ON_TWO_RANKS = ("llama-biased", "gpt2", "olmo2", "cohere-normed", "bamba")


@pytest.mark.parametrize(
    ("name", "size"), [*((it, 1) for it in NORMS), *((it, 2) for it in NORMS_ON_TWO_RANKS)]
)
def test_norms_of_their_own_equal_peft(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = ask(save(tmp_path, name, *NORMS[name]))
    with thread_ranks.engines(want.served.folder, size, monkeypatch, **SIZES) as ranks:
        ids = [load(rank, want.served) for rank in ranks]
        for seed in (None, 4):
            for rank in ranks:
                rank.clear()
            check(thread_ranks.execute_on_all(ranks), want, ids[0], seed)


@pytest.fixture(scope="module")
def expected_of_kind(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Expected]:
    made: dict[str, Expected] = {}

    def make(name: str) -> Expected:
        if name not in made:
            made[name] = ask(save(tmp_path_factory.mktemp(name), name, *KINDS[name]))
        return made[name]

    return make


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Expected]:
    made: dict[str, Expected] = {}

    def make(name: str) -> Expected:
        if name not in made:
            made[name] = ask(save(tmp_path_factory.mktemp(name), name, EVERY, FAMILIES[name]))
        return made[name]

    return make


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_equal_the_merged_models(name: str, expected: Callable[[str], Expected]) -> None:
    want = expected(name)
    engine = make_engine(want.served.folder, **SIZES)
    engine.cache.spoil()
    ids = load(engine, want.served)
    for seed in (None, 1):
        engine.clear()
        check(execute_on(engine), want, ids, seed)


@pytest.mark.parametrize("name", ["llama-biased", "gpt2", "falcon-40b", "phi3", "cohere-normed"])
def test_two_ranks_equal_the_merged_models(
    name: str, expected: Callable[[str], Expected], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = expected(name)
    with thread_ranks.engines(want.served.folder, 2, monkeypatch, **SIZES) as ranks:
        ids = [load(rank, want.served) for rank in ranks]
        assert ids[0] == ids[1]
        check(thread_ranks.execute_on_all(ranks), want, ids[0], seed=2)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_magnitudes_and_biases_equal_the_merged_models(
    name: str, size: int, expected_of_kind: Callable[[str], Expected], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = expected_of_kind(name)
    with thread_ranks.engines(want.served.folder, size, monkeypatch, **SIZES) as ranks:
        ids = [load(rank, want.served) for rank in ranks]
        check(thread_ranks.execute_on_all(ranks), want, ids[0], seed=3)


@pytest.mark.parametrize("size", [1, 3])
def test_a_head_of_its_own_leaves_the_tied_embeddings(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "tie_word_embeddings": True,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
    }
    model = tiny_model.save(tmp_path / "model", tiny_model.TinyModel("llama", options))
    adapted = unmerged(tmp_path / "adapter", model, target_modules=["lm_head", "o_proj"], r=3, use_dora=True)
    with thread_ranks.engines(tmp_path / "model", size, monkeypatch, **SIZES) as ranks:
        for rank in ranks:
            adapter_id = rank.slots.adapters.load(tmp_path / "adapter", "", "test").adapter_id
        params = SamplingParams(prompt_logprobs=True)
        names = ["", adapter_id, adapter_id]
        sequences = [
            Sequence(prompt, NUM_NEW, params, adapter_id=name)
            for prompt, name in zip(prompts(), names, strict=True)
        ]
        Driver(thread_ranks.execute_on_all(ranks), num_slots=24, num_blocks=160).run(sequences)
    for sequence, said_by in zip(sequences, (model, adapted, adapted), strict=True):
        tokens, logprobs = oracle.greedy(said_by, sequence.prompt, NUM_NEW)
        assert sequence.output == tokens
        assert sequence.logprobs == pytest.approx(logprobs, abs=1e-3)
        of_prompt = oracle.prompt_logprobs(said_by, sequence.prompt)
        assert list(sequence.prompt_logprobs.values()) == pytest.approx(of_prompt, abs=1e-3)


# Parts that are not a low-rank matrix beside a linear layer, by whether the head is the embeddings.
WHOLE: dict[str, tuple[bool, dict[str, Any]]] = {
    "head and embeddings": (False, {"modules_to_save": ["lm_head", "embed_tokens"]}),
    "embeddings that the head has, too": (True, {"modules_to_save": ["embed_tokens"]}),
    "a head beside tied embeddings": (True, {"modules_to_save": ["lm_head"]}),
    "linear layers": (False, {"modules_to_save": ["o_proj", "up_proj", "1.self_attn.k_proj"]}),
    "embeddings of low rank": (False, {"target_modules": ["embed_tokens", "q_proj"], "use_rslora": True}),
    "embeddings with magnitudes": (False, {"target_modules": ["embed_tokens", "q_proj"], "use_dora": True}),
    "tied embeddings with magnitudes": (
        True,
        {"target_modules": ["embed_tokens", "v_proj"], "use_dora": True},
    ),
    "both of low rank": (True, {"target_modules": ["embed_tokens", "lm_head"]}),
    "tokens": (False, {"trainable_token_indices": [5, 300, 17, 150]}),
    "tokens that the head has, too": (True, {"trainable_token_indices": [5, 300, 17, 150]}),
    "tokens of both": (False, {"trainable_token_indices": {"lm_head": [4, 299], "embed_tokens": [7]}}),
}


ON_ONE_RANK = ("head and embeddings", "linear layers", "embeddings of low rank", "tokens of both")


@pytest.mark.parametrize(("name", "size"), [*((it, 3) for it in WHOLE), *((it, 1) for it in ON_ONE_RANK)])
def test_embeddings_tokens_and_whole_modules_equal_peft(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_tied, options = WHOLE[name]
    recipe = tiny_model.TinyModel(
        "llama",
        {
            "tie_word_embeddings": is_tied,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "attention_bias": True,
        },
    )
    model = tiny_model.save(tmp_path / "model", recipe)
    options = {"target_modules": ["v_proj"], "r": 3, **options}
    adapted = unmerged(tmp_path / "adapter", model, save_embedding_layers="auto", **options)
    with thread_ranks.engines(tmp_path / "model", size, monkeypatch, **SIZES) as ranks:
        for rank in ranks:
            rank.cache.spoil()
            adapter_id = rank.slots.adapters.load(tmp_path / "adapter", "", "test").adapter_id
        params = SamplingParams(prompt_logprobs=True)
        texts = [*prompts(), [17, 5, 300, 4, 150, 7, 299], prompts()[0]]
        sequences = [Sequence(text, NUM_NEW, params, adapter_id=adapter_id) for text in texts[:-1]]
        sequences.append(Sequence(texts[-1], NUM_NEW, params))
        Driver(thread_ranks.execute_on_all(ranks), num_slots=24, num_blocks=160).run(sequences)
    for sequence in sequences:
        said_by = adapted if sequence.adapter_id else model
        tokens, logprobs = oracle.greedy(said_by, sequence.prompt, NUM_NEW)
        assert not sequence.errors
        assert sequence.output == tokens
        assert sequence.logprobs == pytest.approx(logprobs, abs=1e-3)
        of_prompt = oracle.prompt_logprobs(said_by, sequence.prompt)
        assert list(sequence.prompt_logprobs.values()) == pytest.approx(of_prompt, abs=1e-3)


def test_an_activated_adapter_acts_from_its_invocation_on(tmp_path: Path) -> None:
    invocation = [7, 8]
    options: dict[str, Any] = {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 8}
    folder, model, [plain] = save(tmp_path, "llama", options)
    peft_model = unmerged(tmp_path / "activated", model, alora_invocation_tokens=invocation, **options)
    texts = [[3, *invocation, 9, 4, *invocation, 5, 6], [*invocation, 4, 4], [1, 2, 3, 8, 7]]
    engine = make_engine(folder, **SIZES)
    activated = engine.slots.adapters.load(tmp_path / "activated", "", "test")
    assert activated.invocation == (7, 8)
    others = load(engine, Served(folder, model, [plain]))
    for seed in (None, 1):
        engine.clear()
        sequences = [Sequence(text, NUM_NEW, adapter_id=activated.adapter_id) for text in texts]
        beside = Sequence(texts[0], NUM_NEW, adapter_id=others[0])
        Driver(execute_on(engine), num_slots=24, num_blocks=160).run([*sequences, beside], seed)
        for sequence, said_by in zip(sequences, (peft_model, peft_model, model), strict=True):
            tokens, logprobs = oracle.greedy(said_by, sequence.prompt, NUM_NEW)
            assert sequence.output == tokens
            assert sequence.logprobs == pytest.approx(logprobs, abs=1e-3)
        assert beside.output == oracle.greedy(plain.merged, texts[0], NUM_NEW)[0]
    assert sequences[0].output != beside.output, "it acts on a part only"
