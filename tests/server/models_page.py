"""Writes docs/models.md from the registry and the cases it is tested with: `python tests/server/models_page.py`."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import every_class
from family_models import BORROWED, CASES, KEPT
from penstock_server.architectures.family import Family
from penstock_server.architectures.registry import FAMILIES

PAGE = Path(__file__).parents[2] / "docs/models.md"

_HEAD = """# Models

One decoder serves every family below; a family is a row of facts and names in
`server/penstock_server/architectures/families/`. `model_type` in config.json chooses the row. Everything works for
every row: continuous batching, chunked prefill, prefix cache, `--num-shard` (heads, and a part of every expert, on each
rank; key heads are repeated where there are fewer than ranks), log probabilities, grammars, float32, bfloat16 and,
on CUDA, float16.

Attention over latents (DeepSeek V2 and V3, Kimi K2 and others) caches one vector of `kv_lora_rank` +
`qk_rope_head_dim` numbers for each token and layer: 1,152 bytes in bfloat16 for DeepSeek V3. `--num-shard` divides its
heads, and every rank has the whole cache. A decode is computed in the space of the latents; a longer piece of a prompt
makes the keys and values of its context again. On CUDA a Triton kernel computes spans of up to 128 tokens, and all
that is in graphs: decodes, drafts, and steps of few tokens with prompts; unmeasured on a device. On a CPU spans of up
to 8 tokens are computed in C, and decode steps are recorded. The reference in PyTorch computes the rest.
`--kv-cache-dtype fp8`, `--batch-invariant` and attention by other libraries are refused for such a model.

Where an index chooses the positions that a query sees (DeepSeek V3.2, GLM-5: 2,048 of them), its keys are cached
beside the latents, and the index is whole on every rank. Up to that length a step is that of DeepSeek V3. For longer
contexts the index scores every position in C or in a kernel, and attention over latents reads the best ones where they
lie, as blocks of one position; so such steps are captured and recorded like others. Of equal scores the first positions
are taken. Layers may share the index of a layer before them. Unmeasured on a device.

Recurrent layers (the gated delta rule of Qwen3-Next and Qwen3.5, that of Kimi Linear (KDA), where every row of a matrix
forgets by itself, Mamba-1 and 2, short convolutions) keep a state for each slot, of one size whatever the length of its
sequence: 77 MB in Qwen3-Next 80B. States take their memory before
the KV cache gets the rest; `--max-batch-size` says how many there are. A sequence cannot go on from the blocks of
another alone, so the prefix cache keeps states, too (`--max-snapshots`): at the end of a prompt, in output, and where
requests diverge. A prefix is shared up to the last of these ([scheduling.md](scheduling.md#states)); where none can be
kept, nothing is shared. Drafts take further states ([speculation.md](speculation.md#models-with-states)).
`--num-shard` divides their heads (key heads, heads and groups, or channels), and is refused with the key of config.json
where it cannot. On a CPU they are computed in C ([kernels.md](kernels.md)), and decode steps are recorded. On CUDA
decode steps are computed by Triton kernels, in graphs; prompts in chunks of 64: of the gated delta rule and of Mamba-2
in bfloat16 by Triton kernels, of KDA, of keys or states of more than 128 and in other types by the reference in
PyTorch; those of Mamba-1 by its kernel, token after token. `--batch-invariant` is refused. A step waits for the masks
of grammars as long as these take, because a state cannot go back by a token.

Layers may have key heads of their own. In Gemma 4 those of layers that see everything are fewer and larger; the cache
has a pool for each kind, so that no layer takes more than it needs. Layers that read the keys and values of an earlier
one have none. `--pipeline-parallel-size` is refused for these.

ALiBi (BLOOM, MPT, Falcon RW, Baichuan 13B) is computed in C on a CPU, and on CUDA by the Triton kernels of attention,
in graphs.

Of Baichuan, `max_position_embeddings` in config.json means rotary positions, and `model_max_length` without it ALiBi. A
vocabulary of 125,696 tokens or more means the head of Baichuan 2: its rows are made of length 1 as they are loaded, and
it is neither kept in few bits nor changed by adapters. The code that `auto_map` names is not run, so a
`tokenizer.model` that needs such code is not converted: the folder must have a tokenizer.json.

How a row is tested (`tests/server/test_families.py`): tiny random models, made by transformers in the variants of
the last column. Greedy tokens must equal transformers' own and log probabilities be within 0.001 of them, in
float32 (but for what an index chooses of equal scores, which transformers leaves open): prompts in odd chunks, decodes
in mixed batches, sequences preempted and computed again, the blocks of a prefix reused, one rank and two, for some of
them four. `tests/server/test_config.py` reads each config.json as
transformers 4 and as transformers 5 writes it.

This page is written by `make docs`; a test compares it with the registry.

| model_type | models | positions | norms | attention | feed-forward | variants tested |
| --- | --- | --- | --- | --- | --- | --- |
"""

_BORROWED = """
## Everything else

A model_type without a row is computed by the modelling code of the installed transformers (`pip install
'penstock[transformers]'`), over the same paged cache: our attention stands in its attention interface. `--model-impl
native` forbids that, `--model-impl transformers` asks for it even where there is a row. The log
and `/info` (`model_impl`) say which of the two it is.

Continuous batching, chunked prefill and the prefix cache work as above. With `--num-shard`, linear layers are divided
by the model's tensor-parallel plan, or by the usual names; what a plan says in other words (experts, fused
projections, the vocabulary) is whole on every rank. A rank reads its own slices of what is divided; only where the
checkpoint has other names for it than the model, each rank reads all of it first. Norms and linear layers are those of
transformers: their sums depend on the number of rows, so `--batch-invariant` is refused.

Before it serves, such a model is tried: two prompts, each in three steps through the paged cache, must give the log
probabilities that transformers gives alone. Where they do not, or where layers keep something other than keys and
values (states, the keys of an index, compressed or chunked positions), each slot keeps a cache of transformers' own
kind, and that is tried likewise; a model for which both are wrong is refused. Code from a model's folder is not run.

Over caches of transformers, chunked prefill, preemption, grammars, log probabilities and `--num-shard` work as above,
but the sequences of a step are computed one after another, and no prefix is shared. What a position takes in such a
cache is measured at the start and counted in blocks, so `--max-batch-total-tokens` holds; it is freed when its sequence
ends. `--kv-cache-dtype fp8`, `--max-snapshots` and `--draft-model` are refused, and no tokens are drafted.

The same tests as above are run with a sample (`tests/server/test_borrowed.py`): {}. Over caches of transformers, they
are run with {}.
"""
_WHOLES = """
## Models that also see or hear

Of these the text part is served: their config.json has it in `text_config`, and it is a model of its own, with a row
above or in transformers. That is how Gemma 3, Llama 4, Qwen3.5, Mistral Small 3 and 4, Ministral 3, Kimi K2.5, Qwen-VL,
GLM-V, LLaVA, InternVL and many others are published. The same folder and the same `--model-id` serve it; the log says
that it is a part. The tensors of the other parts are left where they are and take no memory. Requests with images are
refused, each with the reason.

- The text part reads text as the whole model does. Models that read a prompt in both directions (PaliGemma, Florence 2)
  are refused.
- Three names of tensors are known: `model.language_model.…`, `language_model.…` and `model.text_model.…`; older files
  of Qwen-VL name the text part as if it were alone.
- `tie_word_embeddings`, `eos_token_id`, `dtype` and `quantization_config` of the whole model count before those of the
  text part. A list of modules that stay in 16 bits may name those of other parts.
- What published files of Gemma 3, LLaVA and others leave out of `text_config` is filled in as transformers does.

`tests/server/test_text_part.py` makes tiny models of twelve kinds and compares the text part with the whole model of
transformers.
"""
_CLASSES = """
## Every class of transformers

A tiny random model of each decoder-only class for text of transformers {version} was served and compared
(`python tests/server/every_class.py`): {served} of {total} give its tokens. The others are refused as they are loaded,
with the reason in this table. Encoders, the decoders of encoder-decoders and what is more than its text part are left
out.

| what becomes of it | classes | model_type |
| --- | --- | --- |
"""
_TAIL = """
## What is decided where

- **Lengths** that config.json does not name are those that transformers assumes for the family, else 2,048, as for
  BLOOM. `--max-total-tokens` may be less, and more where positions are rotary (`--rope-factor`).
- **Granite 4** rotates queries and keys where `position_embedding_type` is `rope`, and else has no positions.
- **GPT-SW3** says `gpt2` in its config.json, and has that row.
- **Rotary scaling**: linear, llama3, yarn, longrope, and the part of a head that rotates in Gemma 4. longrope's
  factors, and `short_mscale` or `long_mscale` of Phi-3.5-MoE with them, are those for long sequences if the server
  serves longer ones than the model was first trained with (`--max-total-tokens`), else those for short ones: a token
  must not depend on how long its sequence became. transformers has the short factors of Phi-3.5-MoE at any length and
  changes `mscale` alone, so it agrees up to that length only; the model's own code changes both, as here. Dynamic
  scaling begins where a model's length ends, and sequences go there with `--rope-factor` only; its base is then that of
  the longest sequence that is served.
- **Weights** are read from safetensors, fused or split, and converted to `--dtype` on the way, a slice at a time.
  Names without their first part are found, too, as in a folder that was saved without the head. A tensor that holds
  NaN or infinity is refused. On a CPU, what is stored in `--dtype` already is not read but mapped: it is checked, and
  stays in the file's pages, which all shards share and the system may take back; they are large ones where the system
  can do it ([sizing-and-tuning.md](sizing-and-tuning.md#cpus)). Replace such a file only by renaming another into its
  place: one that shrinks while it is served ends the shards.
- **`generation_config.json`**: what ends a sequence is always read from it (else from `config.json`); how to sample is
  the default of OpenAI's and Anthropic's routes (`--generation-config`, [parameters.md](parameters.md)).
- **`--load-format dummy`** fills the model with noise and reads no weights: for measuring.
- **Quantized weights**: [quantization.md](quantization.md) says which formats are read.
- **Not supported**: images and sound, and code from a model's folder, which is never run.
- **`--dtype` on a CPU** is float32 unless told otherwise. bfloat16 halves the memory; it is faster where the processor
  multiplies it itself (avx512_bf16), and elsewhere about as fast in decodes and half as fast in prompts
  ([devices.md](devices.md)).
- **Sliding windows**: where every layer of our own decoder has one, blocks behind the widest come back while their
  sequence runs, so that it needs about twice its window however long it becomes, and may be longer than the whole
  cache. They stay cached while there is room; a prefix whose first blocks are gone is computed again. A model with a
  layer that sees everything, and one that transformers computes, keeps all blocks until its sequence ends.
- **Tokenizers**: `tokenizer.json`. A folder that has a sentencepiece `tokenizer.model` only is converted by
  transformers when the server starts (`pip install 'penstock[transformers]'`), once: the result is kept in
  `$HF_HOME/penstock/tokenizers`, by the content of the files that it was made of. Other files of that name (tiktoken)
  are refused.
- **Downloads**: `launcher download org/model` fetches ahead of time what a start would: safetensors, tokenizer and
  configs of the repository's root, no pickles and no code. A connection that breaks is taken up where it broke, by the
  hub's client; of a download that was killed, the files that were complete are kept. A repository with pickled weights
  only is refused before anything is fetched.
"""


def page() -> str:
    """The whole page."""
    rows = "".join(_line(family) for _name, family in sorted(FAMILIES.items()))
    return _HEAD + rows + _BORROWED.format(_names(BORROWED), _names(KEPT)) + _WHOLES + _every_class() + _TAIL


def _names(models: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(models))


def _every_class() -> str:
    """The outcome of each class of transformers: the served ones first, then the others, grouped by reason."""
    written, by_outcome = every_class.read(), defaultdict(list)
    for name, found in written.outcomes.items():
        by_outcome[found].append(name)
    total, served = len(written.outcomes), sum(map(every_class.is_served, written.outcomes.values()))
    order = sorted(
        by_outcome, key=lambda found: (not every_class.is_served(found), -len(by_outcome[found]), found)
    )
    rows = (
        f"| {_verdict(found)} | {len(by_outcome[found])} | {', '.join(by_outcome[found])} |\n"
        for found in order
    )
    return _CLASSES.format(version=written.version, total=total, served=served) + "".join(rows)


def _verdict(found: str) -> str:
    if every_class.is_served(found):
        return f"served by {found}"
    return found if found.startswith("not tried") else f"refused: {found}"


def _line(family: Family) -> str:
    cells = (
        f"`{family.model_type}`",
        family.title,
        _positions(family),
        _norms(family),
        _attention(family),
        _feed_forward(family),
        ", ".join(name for name, options in CASES.items() if options["family"] == family.model_type),
    )
    return f"| {' | '.join(cells)} |\n"


def _positions(family: Family) -> str:
    if family.alibi:
        return "ALiBi"
    if not family.rotary:
        return "learned" if family.names.positions else "none"
    if family.rotating_layers is not None:
        return "rotary, but in some layers"
    kinds = ["rotary"]
    if family.interleaved_rope:
        kinds.append("in neighbouring pairs")
    if family.backward_rope:
        kinds.append("backwards")
    if family.thetas_key:
        kinds.append("or none, by a theta of each layer")
    if family.rope_only_in_windows:
        kinds.append("only in layers with a window")
    if family.local_rope is not None:
        kinds.append("another in layers with a window")
    return ", ".join(kinds)


def _norms(family: Family) -> str:
    names = family.names
    kind = "layer" if family.norm_centered else "RMS"
    places = [
        (names.attention_input_norm or names.mlp_input_norm, "before"),
        (names.attention_output_norm or names.mlp_output_norm, "after"),
    ]
    parts = [f"{kind}, {' and '.join(place for name, place in places if name)}"]
    if not family.norm_weights:
        parts.append("without weights")
    if family.parallel is not False:
        parts.append("attention and feed-forward side by side")
    return "; ".join(parts)


_RECURRENT = {
    "delta": "gated delta rule",
    "row_delta": "delta rule that forgets row by row",
    "state_space": "Mamba-2",
    "selective": "Mamba-1",
    "short_conv": "short convolutions",
}


def _attention(family: Family) -> str:
    facts = {
        _RECURRENT[family.recurrent.kind] if family.recurrent else "": family.recurrent is not None,
        "gates": family.gated_attention,
        "latents": family.latent and not family.indexed,
        "latents, of which an index chooses some": family.indexed,
        "window": family.windows is not None,
        "chunks": bool(family.chunk_key),
        "norm of queries and keys": family.qk_norm is not None and not family.qk_norm_after_rope,
        "norm of rotated queries and keys": family.qk_norm_after_rope,
        "norm of values": family.value_norm,
        "other heads in layers that see everything": family.full_heads is not None,
        "layers that read those of others": family.kv_readers is not None,
        "limits": family.qkv_limit is not None,
        "soft cap": family.attention_soft_cap is not None,
        "sinks": family.sinks,
        "bias": family.qkv_bias is not False,
    }
    return ", ".join(fact for fact, holds in facts.items() if holds) or "plain"


def _feed_forward(family: Family) -> str:
    kind = "gated" if family.gated else "plain"
    if family.experts is None:
        return kind
    if family.experts.beside_dense:
        return f"{kind}, and experts beside it"
    kind = "experts, in groups" if family.experts.groups is not None else "experts"
    return f"{kind} and a shared one" if family.experts.shared_size or family.experts.shared_count else kind


if __name__ == "__main__":
    PAGE.write_text(page())
