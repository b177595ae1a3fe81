"""Serves a tiny random model of each causal-LM class of the installed transformers, and writes down what came of it.

`python tests/server/every_class.py` takes some minutes and renews every_class.json, which docs/models.md shows; with
names behind it, it only says what becomes of those. A class is served right if the engine gives the greedy tokens of
transformers and log probabilities within 0.001 of them, in chunks, in mixed batches and after preemption.
"""

import inspect
import json
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).with_name("every_class.json")
NATIVE, BORROWED, KEPT = "our decoder", "transformers", "transformers, over its own caches"
_LIMIT_S = 60
_NUM_NEW = 4

# Names under which configs have their sizes; each class is given those that it has.
_SIZES: dict[str, Any] = {
    "vocab_size": 301, "unpadded_vocab_size": 301, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.3, "tie_word_embeddings": False, "max_position_embeddings": 200, "n_positions": 200,
    "max_seq_len": 200, "hidden_size": 64, "d_model": 64, "n_embd": 64, "word_embed_proj_dim": 64,
    "intermediate_size": 96, "ffn_dim": 96, "ffn_hidden_size": 96, "n_inner": 96, "num_hidden_layers": 3,
    "num_layers": 3, "n_layers": 3, "n_layer": 3, "num_attention_heads": 8, "n_heads": 8, "n_head": 8,
    "num_key_value_heads": 4, "head_dim": 8, "rotary_dim": 8,
    "sliding_window": 9, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2, "moe_intermediate_size": 44, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "shared_expert_intermediate_size": 52,
    "moe_shared_expert_intermediate_size": 52,
}  # fmt: skip
# Attention over latents makes a key head for each query head.
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 8, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}  # fmt: skip
# The options that a class needs in addition to the sizes; None removes one.
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
_MIXED = ["linear_attention", "full_attention", "linear_attention"]
_DELTA: dict[str, Any] = {
    "head_dim": 16, "layer_types": _MIXED, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
    "linear_key_head_dim": 10, "linear_value_head_dim": 6,
}  # fmt: skip
_STATE_SPACE: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 16,
}  # fmt: skip
_SPECIAL: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": 4, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 301,
    },
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "num_hidden_layers": None},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "bamba": {"attn_layer_indices": [1], "hidden_size": 128, **_STATE_SPACE, "mamba_d_head": 32},
    "falcon_h1": {"mamba_d_ssm": 128, **_STATE_SPACE},
    "granitemoehybrid": {"layer_types": _MIXED, "shared_intermediate_size": 52, **_STATE_SPACE},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 16},
    "nemotron_h": {
        "num_hidden_layers": None,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 16,
        "chunk_size": 16,
        "moe_shared_expert_intermediate_size": 52,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention"],
        "num_key_value_heads": 8,
    },
    "zaya": {"num_experts_per_tok": 1},
    "bailing_hybrid": {"layer_types": _MIXED},
    "kimi_linear": {"layer_types": _MIXED, "linear_num_heads": 4, "linear_head_dim": 8},
    "qwen4_exp_text": {
        **_DELTA,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [],
    },
    "qwen3_next": _DELTA,
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": _DELTA,
}
_ENCODERS = """
bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta
roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl xmod xlnet reformer
"""
_PARTS_OF_OTHERS = """
bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart prophetnet trocr whisper
musicgen musicgen_melody moshi emu3 fuyu gemma3 gemma3n gemma4 gemma4_unified gemma4_assistant
gemma4_unified_assistant git got_ocr2 llama4 mllama moss_transcribe_diarize phi4_multimodal qwen3_5
qwen3_5_moe qwen4_exp dots3_note
"""
# Its bytes become patches by a model of its own.
_OTHERS = "blt"
# transformers has it among those that see, though it does not.
_AMONG_THOSE_THAT_SEE = {"mistral4": "Mistral4ForCausalLM"}


class Written(NamedTuple):
    """The results, and the version of transformers: model_type to who computes it, or why nobody does."""

    version: str
    outcomes: dict[str, str]


def read() -> Written:
    """The results that the last run over all classes wrote."""
    written = json.loads(RESULTS.read_text())
    return Written(written["transformers"], written["classes"])


def is_served(found: str) -> bool:
    """Whether somebody computes the class."""
    return found in (NATIVE, BORROWED, KEPT)


def classes() -> dict[str, str]:
    """Every decoder-only text model: model_type to class. Encoders and parts of larger models are left out."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    others = {*_ENCODERS.split(), *_PARTS_OF_OTHERS.split(), _OTHERS}
    named = {**NAMES, **_AMONG_THOSE_THAT_SEE}
    return {name: found for name, found in sorted(named.items()) if name not in others}


def options_of(model_type: str) -> dict[str, Any]:
    """Small sizes for those of our names that the config of the class has."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type]
    known = {*inspect.signature(config.__init__).parameters, *getattr(config, "__dataclass_fields__", ())}
    known |= {*getattr(config, "attribute_map", {}), *("pad_token_id", "bos_token_id", "eos_token_id")}
    wanted = {**_SIZES, **(_LATENT if "kv_lora_rank" in known else {})}
    chosen = {key: value for key, value in wanted.items() if key in known}
    return {**chosen, **_SPECIAL.get(model_type, {})}


def serve(model_type: str) -> str:
    """Who computes the class, or in one line why nobody does."""
    import oracle
    import tiny_model
    from driver import Driver, Sequence, execute_on, make_engine
    from penstock_server.base.errors import PenstockError

    options = {**dict.fromkeys(tiny_model.sizes()), **options_of(model_type)}
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 301) for _ in range(length)] for length in (1, 5, 17, 33)]
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model.save(Path(folder), tiny_model.TinyModel(model_type, options))
        try:
            engine = make_engine(Path(folder), max_sequence_len=100)
        except PenstockError as error:
            return str(error).partition("cannot compute it: ")[2] or str(error)
        found = [Sequence(prompt, _NUM_NEW) for prompt in prompts]
        Driver(execute_on(engine)).run(found, seed=1)
        for sequence in found:
            tokens, logprobs = oracle.greedy(model, sequence.prompt, _NUM_NEW)
            near = all(abs(a - b) < 1e-3 for a, b in zip(sequence.logprobs, logprobs, strict=False))
            if sequence.errors or sequence.output != tokens or not near:
                return "its tokens are wrong"
    if "transformers" not in engine.description.abilities:
        return NATIVE
    return BORROWED if engine.cache.states is None else KEPT


def outcome(model_type: str) -> str:
    """Like `serve`; where no tiny model of the class can be made here, the outcome gives the reason."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"{_LIMIT_S} s were not enough")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(_LIMIT_S)
    try:
        return serve(model_type)
    except Exception as error:  # whatever a class of the library raises, the next one is tried
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"not tried: no tiny model could be made ({reason[:120]})"
    finally:
        signal.alarm(0)


def main(names: list[str]) -> None:
    """Say what becomes of these classes; of all, and write it down, where none is named."""
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    found = {}
    for name in names or classes():
        found[name] = outcome(name)
        sys.stdout.write(f"{name}: {found[name]}\n")
        sys.stdout.flush()
    if not names:
        written = {"transformers": transformers.__version__, "classes": found}
        RESULTS.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main(sys.argv[1:])
