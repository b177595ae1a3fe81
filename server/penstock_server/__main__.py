"""Entry point of one shard process."""

import logging
import os
import sys

from penstock_server.process.cli import main


def _leave(code: int) -> None:
    """End the process at once. Threads may be in the middle of a step or of a grammar, which nothing can interrupt: if
    Python ended first, as it does by default, they would come back to an interpreter that is gone, and abort.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


_leave(main(sys.argv[1:]))
