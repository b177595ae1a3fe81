"""The table of docs/clients.md."""

from peers.suite import ROOT, Found

PAGE = ROOT / "docs" / "clients.md"
BEGIN, END = "<!-- peers: written by `make peers` -->\n", "<!-- end of peers -->\n"


def table(found: list[Found]) -> str:
    """One row a suite."""
    lines = [
        "| suite | version | run | passed | why the rest does not pass |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for it in found:
        reasons = (
            ", ".join(f"{reason}: {count}" for reason, count in it.reasons.most_common()) or "all passed"
        )
        lines.append(f"| {it.suite} | {it.version} | {it.run} | {it.passed} | {reasons} |")
    return "\n".join(lines) + "\n"


def write(found: list[Found]) -> None:
    """Puts the table in the place of the one before."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}")
