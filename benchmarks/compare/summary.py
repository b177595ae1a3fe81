"""Summary of the runs: medians of the ratios and of each figure, and the figures in which Penstock is worse."""

from statistics import median

from benchmarks.compare.load import Measured
from benchmarks.compare.models import Counts
from benchmarks.compare.servers import Contender
from benchmarks.figure import Figure

# For each load and name of a server, the measurement of each repeat.
Runs = dict[tuple[str, str], list[Measured]]


def summarise(model: str, present: list[Contender], runs: Runs, counts: Counts) -> list[Figure]:
    """For each load: Penstock's figures divided by those of each rival that stores weights in as many bits, then
    the figures of every server.
    """
    figures: list[Figure] = []
    ours = [it for it in present if it.is_ours]
    pairs = [(it, rival) for rival in present if not rival.is_ours for it in ours if it.dtype == rival.dtype]
    for load in dict.fromkeys(load for load, _ in runs):
        where = f"{model}, {load}"
        for mine, rival in pairs:
            label = f"{where}, {mine.way}" if mine.way else where
            figures.append(_ratio(label, rival.name, runs[load, mine.name], runs[load, rival.name]))
        figures += [_own(where, it, runs[load, it.name], counts) for it in present]
    return figures


def _ratio(where: str, rival: str, ours: list[Measured], theirs: list[Measured]) -> Figure:
    ratios = [mine.tokens_per_s / other.tokens_per_s for mine, other in zip(ours, theirs, strict=True)]
    spread = f"median of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f}"
    worse = _behind(_middle(ours), _middle(theirs))
    note = f"{spread}; **behind in {', '.join(worse)}**" if worse else spread
    return Figure(f"{where}: times the tokens/s of {rival}", median(ratios), at_least=1, note=note)


def _own(where: str, contender: Contender, runs: list[Measured], counts: Counts) -> Figure:
    """With the bytes of weights that a step reads at least, which bound the tokens of one stream."""
    it = _middle(runs)
    num_bytes = sum(bits * count / 8 for bits, count in zip(contender.bits, counts, strict=True))
    note = (
        f"TTFT p50 {it.ttft_p50_ms:.0f} ms, ITL p50 {it.itl_p50_ms:.1f} ms, p99 {it.itl_p99_ms:.1f} ms, "
        f"max {it.itl_max_ms:.1f} ms; reads {num_bytes / 1e6:.1f} MB a step"
    )
    return Figure(f"{where}: {contender.name}", it.tokens_per_s, "tokens/s", note=note)


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
        "ITL max": ours.itl_max_ms > theirs.itl_max_ms,
    }
    return [name for name, is_worse in worse.items() if is_worse]
