"""EleutherAI's lm-eval with tasks of our own: through the server it must find what it finds with transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

from peers.suite import Found, Served, run, version

TASKS = Path(__file__).parent / "tasks"
# Both compute in float32; the order of their sums differs.
TOLERANCE = 1e-3
SUBJECTS = [
    "The capital of France",
    "A penstock",
    "Water",
    "The gate of the dam",
    "2 + 2",
    "Once upon a time, a river",
]
VERBS = [" is", " was", " has", " leads to", " ="]
CHOICES = [" Paris", " a pipe that leads water", " 4", " green.\n\nThe end"]


def measure(served: Served, folder: Path) -> Found:
    """Compares each likelihood, and each continuation, with those of transformers."""
    shutil.copytree(TASKS, folder / "tasks")
    texts = [subject + verb for subject in SUBJECTS for verb in VERBS]
    rows = [{"text": text, "choices": CHOICES, "answer": 0} for text in texts]
    (folder / "documents.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    api = f"model={served.model_id},base_url={served.url}/v1/completions,tokenizer={served.model_path},num_concurrent=1"
    ours = _samples(folder, "local-completions", api)
    theirs = _samples(folder, "hf", f"pretrained={served.model_path},dtype=float32")
    found = Found("lm-eval, likelihoods and continuations as with transformers", version("lm_eval"))
    for key, expected in theirs.items():
        found.note(_equal(ours.get(key), expected), "differs from transformers")
    return found


def _samples(folder: Path, model: str, arguments: str) -> dict[tuple[str, int], Any]:
    """The responses of a model, by task and document."""
    out = folder / model
    command = ["-m", "lm_eval", "run", "--model", model, "--model_args", arguments, "--include_path", "tasks"]
    run([*command, "--tasks", "choices", "continuation", "--output_path", str(out), "--log_samples"], folder)
    samples = {}
    for file in out.rglob("samples_*.jsonl"):
        for line in file.read_text().splitlines():
            sample = json.loads(line)
            samples[file.name.split("_")[1], sample["doc_id"]] = sample["filtered_resps"]
    return samples


def _equal(ours: Any, theirs: Any) -> bool:
    """Texts are equal; likelihoods nearly, and equally greedy."""
    if ours is None or len(ours) != len(theirs):
        return False
    if isinstance(theirs[0], str):
        return bool(ours == theirs)
    pairs = zip(ours, theirs, strict=True)
    return all(abs(float(a[0]) - float(b[0])) < TOLERANCE and str(a[1]) == str(b[1]) for a, b in pairs)
