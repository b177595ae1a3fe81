"""Writes docs/models.md from the registry and the cases it is tested with: `python tests/server/models_page.py`."""

from pathlib import Path

from family_models import BORROWED, CASES
from penstock_server.architectures.family import Family
from penstock_server.architectures.registry import FAMILIES

PAGE = Path(__file__).parents[2] / "docs/models.md"

_HEAD = """# Models

One decoder serves every family below; a family is a row of facts and names in
`server/penstock_server/architectures/families/`. `model_type` in config.json chooses the row. Everything works for
every row: continuous batching, chunked prefill, prefix cache, `--num-shard` (heads, and a part of every expert, on each
rank; key heads are repeated where there are fewer than ranks), log probabilities, grammars, float32, bfloat16 and
float16.

How a row is tested (`tests/server/test_families.py`): tiny random models, made by transformers in the variants of
the last column. Greedy tokens must equal transformers' own and log probabilities be within 0.001 of them, in
float32: prompts in odd chunks, decodes in mixed batches, sequences preempted and computed again, the blocks of a
prefix reused, one rank and two. `tests/server/test_config.py` reads each config.json as transformers 4 and as
transformers 5 writes it.

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

Before it serves, such a model is tried: two prompts, each in two steps through the paged cache, must give the log
probabilities that transformers gives alone, else it is refused. So are models whose layers keep something other than
keys and values. Code from a model's folder is not run.

The same tests as above are run with a sample (`tests/server/test_borrowed.py`): {}.
"""
_TAIL = """
## What is decided where

- **Rotary scaling**: linear, llama3, yarn and longrope. longrope's factors are those for long sequences if the
  server serves longer ones than the model was first trained with (`--max-total-tokens`), else those for short ones:
  a token must not depend on how long its sequence became. Dynamic scaling begins where a model's length ends, and
  sequences go there with `--rope-factor` only; its base is then that of the longest sequence that is served.
- **Weights** are read from safetensors, fused or split, and converted to `--dtype` on the way, a slice at a time.
  Names without their first part are found, too, as in a folder that was saved without the head. A tensor that holds
  NaN or infinity is refused. On a CPU, what is stored in `--dtype` already is not read but mapped: it is checked, and
  stays in the file's pages, which all shards share and the system may take back. Replace such a file only by renaming
  another into its place: one that shrinks while it is served ends the shards.
- **`generation_config.json`**: what ends a sequence is always read from it (else from `config.json`); how to sample is
  the default of OpenAI's and Anthropic's routes (`--generation-config`, [parameters.md](parameters.md)).
- **`--load-format dummy`** fills the model with noise and reads no weights: for measuring.
- **Not supported**: quantized weights (gpt-oss as published has them), ALiBi (Falcon RW), models with images, and
  code from a model's folder, which is never run.
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
    return _HEAD + rows + _BORROWED.format(", ".join(f"`{name}`" for name in sorted(BORROWED))) + _TAIL


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
    if not family.rotary:
        return "learned"
    kinds = ["rotary"]
    if family.interleaved_rope:
        kinds.append("in neighbouring pairs")
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
    if family.parallel is not False:
        parts.append("attention and feed-forward side by side")
    return "; ".join(parts)


def _attention(family: Family) -> str:
    facts = {
        "window": family.windows is not None,
        "norm of queries and keys": family.qk_norm is not None,
        "soft cap": family.attention_soft_cap is not None,
        "sinks": family.sinks,
        "bias": family.qkv_bias is not False,
    }
    return ", ".join(fact for fact, holds in facts.items() if holds) or "plain"


def _feed_forward(family: Family) -> str:
    kind = "gated" if family.gated else "plain"
    if family.experts is None:
        return kind
    return "experts and a shared one" if family.experts.shared_size else "experts"


if __name__ == "__main__":
    PAGE.write_text(page())
