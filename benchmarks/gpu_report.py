"""Writes the measurements on a GPU: JSON, a table in Markdown, and a plot of how near each is to its floor."""

import json
from dataclasses import asdict
from html import escape
from pathlib import Path

from benchmarks.gpu_rows import Rates, Row, Served

_BAR_HEIGHT, _LABEL_WIDTH, _WIDTH = 22, 260, 400


def write(folder: Path, device: str, best: Rates, rows: list[Row], served: list[Served]) -> None:
    """Writes `gpu_engine.json`, `.md` and `.svg` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    results = {
        "device": device,
        "rates": asdict(best),
        "rows": [asdict(row) for row in rows],
        "served": [asdict(row) for row in served],
    }
    (folder / "gpu_engine.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "gpu_engine.md").write_text(page(device, best, rows, served))
    (folder / "gpu_engine.svg").write_text(bars([(f"{row.model}: {row.what}", row.share) for row in rows]))


def page(device: str, best: Rates, rows: list[Row], served: list[Served]) -> str:
    """The tables, with the floors that the rows are compared with."""
    head = (
        f"# The engine on {device}\n\nMeasured in the same run: a large copy {best.copy / 1e9:,.0f} GB/s, "
        f"a large product {best.product / 1e12:,.2f} Tflop/s.\n\n![share of the floor](gpu_engine.svg)\n"
    )
    return "\n".join([head, table(rows), "", served_table(served) if served else ""])


def table(rows: list[Row]) -> str:
    """The engine's rows, as Markdown."""
    lines = ["| model | what | time | floor | share | tokens/s | idle |", "| --- " * 7 + "|"]
    for row in rows:
        idle = "" if row.idle is None else f"{row.idle:.1%}"
        lines.append(
            f"| {row.model} | {row.what} | {row.microseconds:,.0f} us | {row.floor_microseconds:,.0f} us "
            f"| {row.share:.0%} | {row.tokens_per_second:,.0f} | {idle} |"
        )
    return "\n".join(lines)


def served_table(rows: list[Served]) -> str:
    """The server's rows, as Markdown."""
    lines = ["| model | load | tokens/s | first token | between tokens |", "| --- " * 5 + "|"]
    lines += [
        f"| {row.model} | {row.load} | {row.tokens_per_second:,.0f} | {row.first_token_ms:,.1f} ms "
        f"| {row.between_tokens_ms:,.2f} ms |"
        for row in rows
    ]
    return "\n".join(lines)


def bars(shares: list[tuple[str, float]]) -> str:
    """A bar for each share of 1, labelled."""
    parts = [
        f'<text x="{_LABEL_WIDTH - 8}" y="{number * _BAR_HEIGHT + 15}" text-anchor="end">{escape(label)}</text>'
        f'<rect x="{_LABEL_WIDTH}" y="{number * _BAR_HEIGHT + 3}" width="{min(share, 1) * _WIDTH:.1f}" '
        f'height="{_BAR_HEIGHT - 6}" fill="#4477aa"/>'
        f'<text x="{_LABEL_WIDTH + min(share, 1) * _WIDTH + 6:.1f}" y="{number * _BAR_HEIGHT + 15}">{share:.0%}</text>'
        for number, (label, share) in enumerate(shares)
    ]
    width, height = _LABEL_WIDTH + _WIDTH + 60, _BAR_HEIGHT * len(shares)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12">\n' + "\n".join(parts) + "\n</svg>\n"
    )
