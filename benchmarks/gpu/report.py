"""Lines as pages: one beside them, and sections of benchmarks/RESULTS.md: `python -m benchmarks.gpu.report LINES …`."""

import argparse
import re
import shutil
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path

from benchmarks.gpu.lines import Line, Lines, Origin, read
from benchmarks.gpu.parts import PARTS

RESULTS = Path(__file__).parents[1] / "results" / "gpu"
_OURS = "penstock"
# Parts whose lines are counted; of their results only failures are listed.
_COUNTED = (1, 2)
# Pixels of the picture.
_BAR_HEIGHT, _LABEL_WIDTH, _WIDTH = 22, 420, 400


def write_page(out: Path) -> None:
    """`report.md` and `shares.svg` beside the lines of a run."""
    lines = Lines(out / "lines.jsonl").read()
    (out / "report.md").write_text("\n".join(sections(lines)) + "\n![shares of the floors](shares.svg)\n")
    (out / "shares.svg").write_text(bars(latest(lines)))


def sections(lines: Iterable[Line]) -> list[str]:
    """A section for each origin: what was measured there, part by part."""
    found = latest(lines)
    origins = dict.fromkeys(line.origin for line in found)
    return [_section(origin, [line for line in found if line.origin == origin]) for origin in origins]


def latest(lines: Iterable[Line]) -> list[Line]:
    """The last line of each result."""
    found: dict[object, Line] = {}
    for line in lines:
        found[(line.origin, line.task, line.result.what)] = line
    return sorted(found.values(), key=lambda line: line.task.part)


def _section(origin: Origin, lines: list[Line]) -> str:
    dates = sorted({line.date for line in lines})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    head = f"## On a GPU: {origin.device}\n\n{when} · commit {origin.commit}\n"
    parts = [(part, [line for line in lines if line.task.part == part]) for part in PARTS]
    return "\n".join([head, *(_part(part, those) for part, those in parts if those)])


def _part(part: int, lines: list[Line]) -> str:
    failed = [line for line in lines if line.result.error]
    shown = [
        line for line in lines if not line.result.error and (part not in _COUNTED or line.result.unit != "s")
    ]
    tasks = {line.task for line in lines}
    bad = {line.task for line in failed}
    head = f"### {PARTS[part].title}\n\n{len(tasks) - len(bad)} of {len(tasks)} without an error.\n"
    return "\n".join(
        [head, *([table(shown), ""] if shown else []), *([_failures(failed), ""] if failed else [])]
    )


def table(lines: list[Line]) -> str:
    """Formats the lines as a Markdown table."""
    rows = ["| what | | by | measured | floor | share | |", "| --- | --- | --- | ---: | ---: | ---: | --- |"]
    for line in lines:
        result = line.result
        share = "" if result.share is None else f"{result.share:.0%}"
        by = "" if line.task.by == _OURS else line.task.by
        numbers = (written(result.value, result.unit), written(result.floor, result.unit), share)
        cells = (line.task.name, result.what, by, *numbers, result.note)
        rows.append("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(rows)


def written(value: float | None, unit: str) -> str:
    """A number of three or more digits, with its unit."""
    if value is None:
        return ""
    return f"{value:,.0f} {unit}".strip() if abs(value) >= 1000 else f"{value:.3g} {unit}".strip()


def _failures(lines: list[Line]) -> str:
    said = (" ".join(line.result.error.split())[:400].replace("`", "'") for line in lines)
    by = ("" if line.task.by == _OURS else f" by {line.task.by}" for line in lines)
    return "\n".join(
        f"- {line.task.name}{who}: `{text}`" for line, who, text in zip(lines, by, said, strict=True)
    )


def bars(lines: list[Line]) -> str:
    """A bar for each share of a floor, labelled."""
    shares = [
        (f"{line.task.name} {line.task.by if line.task.by != _OURS else ''}", line.result.share)
        for line in lines
        if line.result.share is not None and not line.result.unit.endswith("/s")
    ]
    parts = [
        f'<text x="{_LABEL_WIDTH - 8}" y="{number * _BAR_HEIGHT + 15}" text-anchor="end">{escape(label)}</text>'
        f'<rect x="{_LABEL_WIDTH}" y="{number * _BAR_HEIGHT + 3}" width="{min(share, 1) * _WIDTH:.1f}" '
        f'height="{_BAR_HEIGHT - 6}" fill="#4477aa"/>'
        f'<text x="{_LABEL_WIDTH + min(share, 1) * _WIDTH + 6:.1f}" y="{number * _BAR_HEIGHT + 15}">{share:.0%}</text>'
        for number, (label, share) in enumerate(shares)
    ]
    width, height = _LABEL_WIDTH + _WIDTH + 60, _BAR_HEIGHT * max(1, len(shares))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def published() -> list[str]:
    """The sections of all runs that are kept."""
    return [section for path in sorted(RESULTS.glob("*.jsonl")) for section in sections(read(path))]


def publish(path: Path, results: Path = RESULTS) -> Path:
    """Keeps the lines of a run, in the place of those of the same device; raises ValueError for a rehearsal."""
    origins = {line.origin for line in read(path)}
    if len(origins) != 1 or next(iter(origins)).rehearsal:
        raise ValueError(
            f"{path} has lines of {len(origins)} origins; kept is one run on one GPU, of one commit"
        )
    name = re.sub(r"\W+", "-", next(iter(origins)).device.lower()).strip("-")
    results.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(path, results / f"{name}.jsonl"))


def main() -> int:
    from benchmarks import report

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.report", description=__doc__)
    parser.add_argument("lines", type=Path, nargs="+", help="lines.jsonl of a run on a GPU")
    for path in parser.parse_args().lines:
        print(publish(path))
    report.render()
    return 0


if __name__ == "__main__":
    sys.exit(main())
