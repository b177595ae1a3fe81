"""Runs one shard from its command line. torch is imported after everything cheap has been checked."""

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from penstock_server.base import log, parent
from penstock_server.base.config import GRAMMAR_STACK_BYTES, ServerConfig
from penstock_server.base.errors import FAILED, WRONG_USAGE, PenstockError, StartError
from penstock_server.files.folders import Folders, open_folders
from penstock_server.process import unix_socket
from penstock_server.process.flags import parse

logger = logging.getLogger(__name__)


def main(argv: list[str], is_forked: bool = False) -> int:
    """Run a shard until it is told to stop; returns the exit code. `is_forked`: the launcher is not its parent."""
    return _run(argv, _serve, is_forked)


def check(argv: list[str]) -> int:
    """Only check what needs no torch; returns the exit code that such a shard would have."""
    return _run([*argv, "--log-level=error"], _check, is_forked=True)


def _run(argv: list[str], act: Callable[[ServerConfig], int], is_forked: bool) -> int:
    try:
        config = parse(argv)
    except StartError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return WRONG_USAGE
    signal.signal(signal.SIGTERM, _stop_early)
    log.configure(config.json_output, config.log_level)
    if config.parent_pipe_fd is not None:
        parent.watch(config.parent_pipe_fd, is_parent=not is_forked)
    try:
        return act(config)
    except StartError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except PenstockError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return FAILED
    except Exception as error:
        logger.exception("unexpected failure")
        print(
            f"error: unexpected {type(error).__name__}: {error}".split("\n", 1)[0],
            file=sys.stderr,
            flush=True,
        )
        return FAILED


def _stop_early(_number: int, _frame: object) -> None:
    """Stop at once: while a model is loaded there is nothing to drain, and the thread that loads it is not waited for.

    An orderly exit would take the interpreter away from under that thread.
    """
    os._exit(0)


def _check(config: ServerConfig) -> int:
    _open(config)
    return 0


def _serve(config: ServerConfig) -> int:
    begun = time.perf_counter()
    with log.stage(logger, "config"):
        folders = _open(config)
    with log.stage(logger, "import"):
        load_libraries()
    from penstock_server.process.server import serve

    return serve(config, folders, begun)


def _open(config: ServerConfig) -> Folders:
    """Needs no torch, so that a wrong folder is refused in milliseconds."""
    unix_socket.prepare(config.uds_path)
    return open_folders(config)


def load_libraries() -> None:
    """Import torch and all that a shard is made of. Nothing is left to do in a process that was forked after it."""
    _spin_briefly()
    _use_large_pages()
    _allow_recursion()
    # Imported objects stay: the garbage collector took a sixth of this time to visit them again and again.
    gc.disable()
    import penstock_server.process.server  # noqa: F401

    gc.freeze()
    gc.enable()


def _spin_briefly() -> None:
    """Make OpenMP's threads spin for some tens of microseconds when they wait, and then sleep, unless the user chose.

    They are those of PyTorch's ops; ours in C have their own. By default they spin for milliseconds. On a machine that
    runs other programs too, they spin while the thread that they wait for is off its core: a step of small products was
    seen to take a hundred times as long. If they sleep at once, every wake-up takes time.

    The variables are read once, when torch is loaded. GNU's runtime spins for this count, but for 1,000 at most where a
    process has more threads than there are cores, and not at all there if the policy is passive. Other runtimes spin
    for ever under an active policy, so they are given a time.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        os.environ["OMP_WAIT_POLICY"] = "active"
        os.environ["GOMP_SPINCOUNT"] = "4000"
        os.environ["KMP_BLOCKTIME"] = "0"


def _allow_recursion() -> None:
    """Give threads of llguidance the stack that threads for grammars have; read once, with its first thread."""
    os.environ.setdefault("RUST_MIN_STACK", str(GRAMMAR_STACK_BYTES))


def _use_large_pages() -> None:
    """Make torch use pages of 2 MB for larger allocations, unless the user chose; read once, when torch is loaded.

    A copy into fresh memory was measured at 7.2 GB/s instead of 1.8, because small pages cost most of the time.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
