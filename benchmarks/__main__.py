"""`python -m benchmarks [NAME …]`: measure, print, and renew RESULTS.md."""

import os
import sys

from benchmarks import report
from benchmarks.questions import QUESTIONS


def main(names: list[str]) -> int:
    known = [question.name for question in QUESTIONS]
    if unknown := set(names) - set(known):
        print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    for question in QUESTIONS:
        if not names or question.name in names:
            print(f"\n{question.title}\n", flush=True)
            load = os.getloadavg()[0]
            figures = question.measure()
            report.save(question, figures, load)
            print(report.table(figures), flush=True)
    report.render()
    return 0


sys.exit(main(sys.argv[1:]))
