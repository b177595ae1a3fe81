"""Tokens a second over HTTP of a model with recurrent layers, with drafts by n-gram and without, in turn.

Each step with drafts keeps the states behind its tokens, which one without does not.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure
from benchmarks.server import Server
from benchmarks.serving import random_model
from benchmarks.serving.drafts_in_turn import Text
from benchmarks.serving.speculation import USUAL, compare

TITLE = "Drafted tokens: a model with recurrent layers with drafts and without, 128 tokens out (CPU)"
# Three tokens are far likelier than all others, so the last few tokens soon repeat. Drafts must not be slower here.
_REPEATING = Text("text that repeats", {"logit_bias": {"40": 60, "41": 60, "42": 60}}, 1.0)
_DRAWN = Text("text that does not", {"temperature": 1.2})


def measure() -> list[Figure]:
    """Eight layers, 256 wide, of which two attend."""
    with TemporaryDirectory() as temporary:
        flags = (f"--model-id={random_model.make_hybrid(Path(temporary))}", "--dtype=float32")
        with Server(*flags) as plain, Server(*flags, "--speculation=ngram") as drafting:
            return [
                figure for text in (_REPEATING, _DRAWN) for figure in compare(plain, drafting, text, USUAL)
            ]
