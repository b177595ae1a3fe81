"""Hands blocks of the cache out to shards of other replicas, which the router sends with the secret of this process.

Each connection has a thread, few at a time; blocks are read between steps, on the thread that steps.
"""

import logging
import secrets
import socket
import threading
from collections.abc import Callable

from penstock_server.base.config import BlocksAddress
from penstock_server.base.errors import PenstockError, TransferFailed
from penstock_server.base.mutual_tls import MutualTls
from penstock_server.engine.engine import Engine
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.step_loop import StepLoop
from penstock_server.rpc.transfer import addresses, wire

logger = logging.getLogger(__name__)

# Who says nothing for so long is not waited for.
_SILENCE_S = 10.0
_MAX_CONNECTIONS = 16


class BlockServer:
    """Bound from the beginning; raises StartError where that cannot be."""

    def __init__(self, where: BlocksAddress, tls: MutualTls | None, hold: Callable[[], None]) -> None:
        self._secret = secrets.token_bytes(wire.SECRET_BYTES)
        self._tls = None if tls is None else tls.server_context()
        self._listener, self.address = addresses.listen(where)
        self._where = where
        # For tests: waits before blocks are sent.
        self._hold = hold
        self._places = threading.Semaphore(_MAX_CONNECTIONS)

    @property
    def source(self) -> pb.BlockSource:
        """The address and secret that a router tells the shards that are to fetch from it."""
        return pb.BlockSource(address=self.address, secret=self._secret)

    def start(self, loop: StepLoop) -> None:
        """Begin to serve."""
        logger.info("blocks can be fetched from %s", self.address)
        threading.Thread(target=self._accept, args=(loop,), name="blocks", daemon=True).start()

    def close(self) -> None:
        """Take nobody any more."""
        self._listener.close()
        if self._where.path is not None:
            self._where.path.unlink(missing_ok=True)

    def _accept(self, loop: StepLoop) -> None:
        while True:
            self._places.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # It is closed, or there are no file descriptors left: then nothing more can be fetched from here.
                return
            threading.Thread(
                target=self._serve, args=(loop, connection), name="blocks-out", daemon=True
            ).start()

    def _serve(self, loop: StepLoop, connection: socket.socket) -> None:
        try:
            connection.settimeout(_SILENCE_S)
            with addresses.accepted(connection, self._tls) as encrypted:
                self._answer(loop, encrypted)
        except (OSError, PenstockError) as error:
            logger.warning("blocks were not fetched: %s", error)
        finally:
            connection.close()
            self._places.release()

    def _answer(self, loop: StepLoop, connection: socket.socket) -> None:
        engine = loop.engine
        request = wire.read_request(connection, self._secret, engine.cache.num_blocks if engine else 0)
        try:
            block_bytes = loop.between(request.epoch, _checking(request), is_exact=True)
        except PenstockError as error:
            wire.send_refusal(connection, str(error))
            return
        wire.send_announcement(connection, block_bytes * len(request.blocks))
        self._hold()
        # Where a part cannot be read any more, the connection ends early.
        for part in wire.parts(request.blocks, block_bytes):
            connection.sendall(loop.between(request.epoch, _reading(part), is_exact=True))


def _reading(blocks: list[int]) -> Callable[[Engine], memoryview]:
    return lambda engine: engine.cache.read_blocks(blocks)


def _checking(request: wire.Request) -> Callable[[Engine], int]:
    return lambda engine: _checked(engine, request)


def _checked(engine: Engine, request: wire.Request) -> int:
    """Bytes of a block, if those that are asked for are there and of the same format."""
    cache = engine.cache
    if request.cache_format != wire.digest(engine.description, cache.pools):
        raise TransferFailed("its cache has another format")
    if max(request.blocks, default=0) >= cache.num_blocks:
        raise TransferFailed(f"there is no block {max(request.blocks)}")
    return cache.block_bytes
