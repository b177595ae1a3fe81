"""Summary of the runs: medians of the ratios and of each figure, and the figures in which Penstock is worse."""

from statistics import median

from benchmarks.compare.load import Measured
from benchmarks.compare.servers import Contender
from benchmarks.figure import Figure

# For each concurrency and name of a server, the measurement of each repeat.
Runs = dict[tuple[int, str], list[Measured]]


def summarise(model: str, present: list[Contender], runs: Runs) -> list[Figure]:
    """For each concurrency: Penstock's figures divided by each rival's, then the figures of every server."""
    figures: list[Figure] = []
    ours = present[0].name
    rivals = [it.name for it in present[1:] if it.is_exact]
    for concurrency in sorted({concurrency for concurrency, _ in runs}):
        where = f"{model}, {concurrency} at once"
        figures += [
            _ratio(where, rival, runs[concurrency, ours], runs[concurrency, rival]) for rival in rivals
        ]
        figures += [_own(where, it.name, runs[concurrency, it.name]) for it in present]
    return figures


def _ratio(where: str, rival: str, ours: list[Measured], theirs: list[Measured]) -> Figure:
    ratios = [mine.tokens_per_s / other.tokens_per_s for mine, other in zip(ours, theirs, strict=True)]
    spread = f"median of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f}"
    worse = _behind(_middle(ours), _middle(theirs))
    note = f"{spread}; **behind in {', '.join(worse)}**" if worse else spread
    return Figure(f"{where}: times the tokens/s of {rival}", median(ratios), at_least=1, note=note)


def _own(where: str, name: str, runs: list[Measured]) -> Figure:
    it = _middle(runs)
    note = f"TTFT p50 {it.ttft_p50_ms:.0f} ms, ITL p50 {it.itl_p50_ms:.1f} ms, p99 {it.itl_p99_ms:.1f} ms"
    return Figure(f"{where}: {name}", it.tokens_per_s, "tokens/s", note=note)


def _middle(runs: list[Measured]) -> Measured:
    """The median of each figure."""
    return Measured(*(median(values) for values in zip(*runs, strict=True)))


def _behind(ours: Measured, theirs: Measured) -> list[str]:
    """The figures in which Penstock is worse."""
    worse = {
        "tokens/s": ours.tokens_per_s < theirs.tokens_per_s,
        "TTFT p50": ours.ttft_p50_ms > theirs.ttft_p50_ms,
        "ITL p50": ours.itl_p50_ms > theirs.itl_p50_ms,
        "ITL p99": ours.itl_p99_ms > theirs.itl_p99_ms,
    }
    return [name for name, is_worse in worse.items() if is_worse]
