"""`python -m benchmarks [--minutes N] [NAME …]`: measure, print, and renew RESULTS.md."""

import argparse
import os
import sys

from benchmarks import report
from benchmarks.questions import questions


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long availability and soak take")
    known = [question.name for question in questions()]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all if none")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for question in questions(chosen.minutes):
        if not chosen.names or question.name in chosen.names:
            print(f"\n{question.title}\n", flush=True)
            load = os.getloadavg()[0]
            figures = question.measure()
            report.save(question, figures, load)
            print(report.table(figures), flush=True)
    report.render()
    return 0


sys.exit(main(sys.argv[1:]))
