"""A launcher to be harmed: the tiny model in two shards with every fault hook, in a folder of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from e2e import faults
from e2e.launched import Launched
from e2e.models import make_model


@contextmanager
def tiny(*flags: str) -> Iterator[Launched]:
    """Serving; what is left of it after the context is killed."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        model = make_model(Path(folder) / "model")
        with Launched(run, *faults.flags(run, model), *flags) as server:
            yield server.wait_until_serving()
