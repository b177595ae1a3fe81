"""Tokens a second beside llama.cpp's server, of models that its own converter writes as GGUF.

The converter is that of the sources which `benchmarks/compare/build_llama_cpp.sh` builds.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.compare.rival import THREADS, Rival
from benchmarks.figure import Figure
from benchmarks.server import Server
from benchmarks.serving.decoding import tokens_per_second

_REPEATS = 5
# The context length of each request.
_CONTEXT_LEN = 512
# It guesses how text is split by how it splits one long text, which a tokenizer of single characters does not know.
_CONVERT = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0] + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def binary() -> Path | None:
    """llama.cpp's server, if LLAMA_SERVER names it."""
    found = os.environ.get("LLAMA_SERVER")
    return Path(found) if found else None


def tokenizer() -> Tokenizer:
    """A token for each printable character, and one of two that no prompt has: llama.cpp wants a merge."""
    vocabulary = {token: index for index, token in enumerate(["Ġ", *map(chr, range(33, 127)), "!~"])}
    made = Tokenizer(models.BPE(vocabulary, [("!", "~")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def beside_llama_cpp(
    llama_server: Path, name: str, model: Path, floors: dict[int, float], flags: tuple[str, ...] = ()
) -> list[Figure]:
    """Both servers in turn, in float32, for each number of requests at once; `flags` are the converter's."""
    tokenizer().save(str(model / "tokenizer.json"))
    # Not beside the weights: a folder with such a file is served from it.
    file = _convert(llama_server, model, model.with_suffix(".gguf"), flags)
    most = max(floors)
    rival = Rival(
        *(str(llama_server), "--cont-batching", "--model", str(file), "--threads", str(THREADS)),
        *("--parallel", str(most), "--ctx-size", str(most * _CONTEXT_LEN)),
    )
    with rival, Server(f"--model-id={model}", "--dtype=float32") as server:
        return [
            figure
            for count, floor in floors.items()
            for figure in _compare(server, rival, f"{name}, {count} at once", count, floor)
        ]


def _convert(llama_server: Path, model: Path, file: Path, flags: tuple[str, ...]) -> Path:
    sources = sorted(llama_server.parents[2].glob("llama_cpp_python-*/vendor/llama.cpp"))
    assert sources, f"{llama_server}: the converter is not where build_llama_cpp.sh unpacks it"
    command = (sys.executable, "-c", _CONVERT, str(sources[-1]), str(model))
    subprocess.run(
        [*command, "--outtype", "f32", "--outfile", str(file), *flags], check=True, capture_output=True
    )
    return file


def _compare(server: Server, rival: Rival, name: str, count: int, floor: float) -> list[Figure]:
    runs = [
        tuple(asyncio.run(tokens_per_second(it.address, count, number)) for it in (server, rival))
        for number in range(-1, _REPEATS)
    ][1:]
    ratios = [ours / theirs for ours, theirs in runs]
    note = f"median of {_REPEATS}, {min(ratios):.2f} to {max(ratios):.2f}; {THREADS} threads"
    return [
        Figure(f"{name}: times llama.cpp's tokens/s", median(ratios), at_least=floor, note=note),
        Figure(f"{name}: llama.cpp", median(theirs for _, theirs in runs), "tokens/s"),
    ]
