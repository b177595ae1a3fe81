"""Runs the suites against a server of the demo model that it starts, prints the table, and writes it into the docs."""

import argparse
import json
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

import penstock_server
from e2e.launched import Launched

from peers import guidellm_suite, llama_cpp_suite, lm_eval_suite, page
from peers.suite import Found, Served

SUITES: dict[str, Callable[[Served, Path], Found]] = {
    "lm-eval": lm_eval_suite.measure,
    "guidellm": guidellm_suite.measure,
    "llama.cpp": llama_cpp_suite.measure,
}


def main(arguments: list[str]) -> int:
    """Runs those that are named, or all; only a run of all changes the page."""
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SUITES)}; all if none")
    names = parser.parse_args(arguments).names
    if unknown := set(names) - set(SUITES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as tmp:
        found = _measure(names or list(SUITES), Path(tmp))
    sys.stdout.write(page.table(found))
    if not names:
        page.write(found)
    return 0


def _measure(names: list[str], tmp: Path) -> list[Found]:
    # In float32, to compare with transformers; their tests name models of their own.
    with Launched(tmp, "--dtype=float32", "--accept-any-model") as launched:
        launched.wait_until_serving()
        assert launched.address
        served = _served("http://{}:{}".format(*launched.address))
        return [_measure_one(name, served, tmp / name) for name in names]


def _measure_one(name: str, served: Served, folder: Path) -> Found:
    folder.mkdir()
    sys.stderr.write(f"{name} …\n")
    return SUITES[name](served, folder)


def _served(url: str) -> Served:
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        model_id = json.load(response)["data"][0]["id"]
    return Served(url, model_id, Path(penstock_server.__file__).parent / "demo_model")


sys.exit(main(sys.argv[1:]))
