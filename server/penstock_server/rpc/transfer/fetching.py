"""Fetches blocks from a shard of another replica, and writes them to the cache between steps."""

import socket
import time
from collections.abc import Callable

import torch

from penstock_server.base.errors import TransferFailed
from penstock_server.base.mutual_tls import MutualTls
from penstock_server.engine.engine import Engine
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.step_loop import StepLoop
from penstock_server.rpc.transfer import addresses, wire


class Fetcher:
    """Fetches blocks for one shard. May be called from any thread, several at a time."""

    def __init__(self, tls: MutualTls | None) -> None:
        self._tls = tls

    def fetch(self, loop: StepLoop, order: pb.FetchBlocksRequest) -> int:
        """Have the blocks in the cache; returns how many bytes that were.

        Raises TransferFailed or StaleEpoch; then what the blocks hold is undefined. Nothing more is written to them.
        """
        deadline = time.monotonic() + order.timeout_ms / 1000
        blocks = list(order.blocks)
        if len(blocks) != len(order.source_blocks):
            raise TransferFailed("source_blocks and blocks differ in length")
        block_bytes, request = loop.between(order.epoch, lambda engine: _asked(engine, order, blocks))
        try:
            with addresses.connect(order.address, self._tls, _left(deadline)) as connection:
                timed = _Timed(connection, deadline)
                wire.send_request(timed, request)
                wire.read_announcement(timed, block_bytes * len(blocks))
                for part in wire.parts(blocks, block_bytes):
                    data = torch.empty(len(part) * block_bytes, dtype=torch.uint8)
                    wire.read_into(timed, data.numpy().data)
                    loop.between(order.epoch, _writing(part, data))
        except TimeoutError:
            raise TransferFailed(f"not done within {order.timeout_ms} ms") from None
        except OSError as error:
            raise TransferFailed(f"{order.address}: {error}") from None
        return block_bytes * len(blocks)


class _Timed:
    """A connection on which everything together is to be done before a deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def sendall(self, data: memoryview | bytes) -> None:
        """See `Wire`."""
        self._connection.settimeout(_left(self._deadline))
        self._connection.sendall(data)

    def recv_into(self, buffer: memoryview) -> int:
        """See `Wire`."""
        self._connection.settimeout(_left(self._deadline))
        return self._connection.recv_into(buffer)


def _asked(engine: Engine, order: pb.FetchBlocksRequest, blocks: list[int]) -> tuple[int, wire.Request]:
    cache = engine.cache
    if max(blocks, default=0) >= cache.num_blocks:
        raise TransferFailed(f"there is no block {max(blocks)}")
    if len(order.secret) != wire.SECRET_BYTES:
        raise TransferFailed(f"a secret of {len(order.secret)} bytes is none")
    cache_format = wire.digest(engine.description, cache.pools)
    request = wire.Request(order.secret, cache_format, order.source_epoch, list(order.source_blocks))
    return cache.block_bytes, request


def _writing(blocks: list[int], data: torch.Tensor) -> Callable[[Engine], None]:
    return lambda engine: engine.write_blocks(blocks, data)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
