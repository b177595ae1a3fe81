"""A launcher for fault injection: the tiny model in two shards with every fault hook, in a folder of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from e2e import faults
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched
from e2e.models import MAX_LEN, make_model


@contextmanager
def tiny(
    *flags: str, max_concurrent: int = MAX_CONCURRENT, max_len: int = MAX_LEN, under: Sequence[str] = ()
) -> Iterator[Launched]:
    """Starts the launcher and waits until it serves. Leaving the context kills the processes that still run."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        model = make_model(Path(folder) / "model", max_len)
        every = [*faults.flags(run, model, max_concurrent), *flags]
        with Launched(run, *every, under=[part.replace("RUN", str(run)) for part in under]) as server:
            yield server.wait_until_serving()
