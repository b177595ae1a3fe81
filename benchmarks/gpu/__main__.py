"""`python -m benchmarks.gpu --out FOLDER [--rehearse] [PART …]`: measures parts, all by default.

Each part runs in a process of its own, for at most `--limit` seconds. A second run with the same folder measures
what is missing of the same commit on the same device.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.supervision import Options, run_part


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.sh", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for lines.jsonl and the report")
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="on this machine's CPU, in tiny sizes: only the numbers differ",
    )
    parser.add_argument("--limit", type=float, default=540.0, help="seconds that each part may take")
    parser.add_argument("--match", default="", help="only what has this text in its name")
    titles = "; ".join(f"{number}: {part.title}" for number, part in PARTS.items())
    parser.add_argument("parts", type=int, nargs="*", choices=[*PARTS, []], metavar="PART", help=titles)
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    options = Options(chosen.out, chosen.rehearse, chosen.limit, chosen.match)
    complete = [run_part(number, options) for number in chosen.parts or PARTS]
    return 0 if all(complete) else 1


sys.exit(main(sys.argv[1:]))
