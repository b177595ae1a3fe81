"""Runs the driver: `python -m penstock_server.cluster`, which the launcher becomes."""

import signal
import sys

from penstock_server.base import log
from penstock_server.base.errors import WRONG_USAGE, StartError
from penstock_server.cluster.flags import parse
from penstock_server.cluster.signals import STOP_SIGNALS


def main(argv: list[str]) -> int:
    """Serve until the launcher of node 0 ends; returns its exit code."""
    settings = parse(argv)
    log.configure(settings.json_output)
    # While there is nothing to end.
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: sys.exit())
    try:
        from penstock_server.cluster.driver import Driver
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        return _fail(
            "--executor ray needs Ray, which is not installed: pip install 'penstock[ray]'", WRONG_USAGE
        )
    try:
        return Driver(settings).run()
    except StartError as error:
        return _fail(str(error), error.exit_code)


def _fail(why: str, code: int) -> int:
    print(f"error: {why}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
