"""GuideLLM, a load generator: all of its requests are answered."""

import json
from pathlib import Path

from peers.suite import Found, Served, run, version

NUM_REQUESTS = 24


def measure(served: Served, folder: Path) -> Found:
    """Counts the requests of a run with four streams that succeeded."""
    out = folder / "report.json"
    program = "from guidellm.__main__ import cli; cli()"
    options = {
        "--backend": f"kind=openai_http,target={served.url}",
        "--tokenizer": f"kind=huggingface_auto,model={served.model_path}",
        "--profile": "kind=concurrent,streams=4",
        "--constraint": f"kind=max_requests,count={NUM_REQUESTS}",
        "--data": "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
        "--output": f"kind=json,path={out}",
    }
    run(
        ["-c", program, "run", "--disable-console", *(part for pair in options.items() for part in pair)],
        folder,
    )
    totals = json.loads(out.read_text())["benchmarks"][0]["metrics"]["request_totals"]
    found = Found("GuideLLM, requests answered", version("guidellm"))
    for number in range(NUM_REQUESTS):
        found.note(number < totals["successful"], "a request failed")
    return found
