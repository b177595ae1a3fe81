"""The cost of a decode step beside its computation, with a model of no size."""

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure
from benchmarks.step_cost import scene, wire
from benchmarks.step_cost.parts import COMPUTE, Parts

TITLE = "A decode step beside its computation (one layer, 16 wide; microseconds of processor time)"
# Beyond the computation: for a step, and for each of its rows.
_STEP_US, _ROW_US = 150.0, 1.0
# The shard's end of the stream.
_STREAM_US = 200.0
# Passes before each plan, as if a larger model computed: threads that sleep in between cost more to wake.
_PAUSE_S = 0.005
_REPEATS = 3


def measure() -> list[Figure]:
    with TemporaryDirectory() as folder:
        model = scene.make_model(Path(folder))
        return [*_parts(model), *_wire(model, Path(folder))]


def _parts(model: Path) -> list[Figure]:
    engine, figures = Parts(model), []
    for num_rows in scene.NUMS_ROWS:
        for sampling in scene.SAMPLINGS:
            rounds = [engine.measure(num_rows, sampling) for _ in range(_REPEATS)]
            found = {part: min(spent[part] for spent in rounds) for part in rounds[0]}
            beyond, floor = sum(found.values()) - found[COMPUTE], _STEP_US + _ROW_US * num_rows
            note = ", ".join(f"{part} {us:.0f}" for part, us in found.items())
            figures.append(
                Figure(
                    f"{_rows(num_rows)}, {sampling}: beyond compute", beyond, "µs", at_most=floor, note=note
                )
            )
    return figures


def _wire(model: Path, folder: Path) -> list[Figure]:
    """Over the socket: plans that come in pauses, two in flight."""
    figures = []
    for kind in ("tonic", "grpcio"):
        with wire.shard(model, folder, f"--endpoint={kind}") as shard:
            for num_rows in scene.NUMS_ROWS:
                costs = [shard.cost(num_rows, "greedy", _PAUSE_S) for _ in range(_REPEATS)]
                stepping = median(cost.stepping for cost in costs)
                stream = sorted(cost.stream for cost in costs)
                note = f"{stream[0]:.0f} to {stream[-1]:.0f}; the thread that steps takes {stepping:.0f} µs"
                figures.append(
                    Figure(
                        f"{kind}, {_rows(num_rows)}: threads of the stream",
                        median(stream),
                        "µs",
                        at_most=_STREAM_US if kind == "tonic" else None,
                        note=note,
                    )
                )
    return figures


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"
