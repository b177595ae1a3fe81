"""The frames between the shard that has blocks and the one that fetches them: one request a connection.

A request says which blocks, of which stream, in which format of cache; an answer is one byte and a length, then either
the blocks one after the other or why there are none. Numbers are big-endian. No length makes anybody read more than
what is expected.
"""

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from penstock_server.base.errors import TransferFailed
from penstock_server.engine.description import Description

SECRET_BYTES = 32
# Blocks are read, sent and written in parts of so many bytes, so that no step waits long and nobody needs more memory.
PART_BYTES = 32 << 20
_MAGIC = b"penstkb1"
# Magic, secret, format, epoch, number of blocks.
_REQUEST = struct.Struct(f"!8s{SECRET_BYTES}s32sQI")
_ANSWER = struct.Struct("!BQ")
_OK, _REFUSED = 0, 1
_MAX_REASON_BYTES = 1000


class Wire(Protocol):
    """A connection: a socket, or one with TLS."""

    def sendall(self, data: memoryview | bytes, /) -> None:
        """Send all of it."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive what is there; 0 at the end."""


class Request(NamedTuple):
    """A request for blocks."""

    secret: bytes
    # The digest of the format of the asker's cache.
    cache_format: bytes
    epoch: int
    blocks: list[int]


def digest(description: Description, pools: Sequence[torch.Tensor]) -> bytes:
    """Tells caches whose blocks are not the same bytes apart; each of the pools: [layers, tensors, num_blocks, ...]."""
    sizes = [(*pool.shape[:2], *pool.shape[3:]) for pool in pools]
    facts = (
        description.facts.model_type, description.versions.weights, description.rank, description.world_size,
        description.num_stages, description.attention_backend, description.kv_cache_dtype, sizes,
    )  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).digest()


def send_request(wire: Wire, request: Request) -> None:
    """Ask for blocks."""
    numbers = np.asarray(request.blocks, ">u4").tobytes()
    fixed = _REQUEST.pack(_MAGIC, request.secret, request.cache_format, request.epoch, len(request.blocks))
    wire.sendall(fixed + numbers)


def read_request(wire: Wire, secret: bytes, max_blocks: int) -> Request:
    """The request of somebody who knows the secret; raises TransferFailed where it is none."""
    magic, given, cache_format, epoch, count = _REQUEST.unpack(read(wire, _REQUEST.size))
    if magic != _MAGIC or not hmac.compare_digest(given, secret):
        raise TransferFailed("no request for blocks, or one with another secret")
    if count > max_blocks:
        raise TransferFailed(f"{count} blocks are asked for, of {max_blocks}")
    blocks: list[int] = np.frombuffer(read(wire, 4 * count), ">u4").tolist()
    return Request(given, cache_format, epoch, blocks)


def send_refusal(wire: Wire, reason: str) -> None:
    """Say why there are no blocks."""
    encoded = reason.encode()[:_MAX_REASON_BYTES]
    wire.sendall(_ANSWER.pack(_REFUSED, len(encoded)) + encoded)


def send_announcement(wire: Wire, num_bytes: int) -> None:
    """Say that so many bytes of blocks follow."""
    wire.sendall(_ANSWER.pack(_OK, num_bytes))


def read_announcement(wire: Wire, num_bytes: int) -> None:
    """Raises TransferFailed unless so many bytes of blocks follow."""
    kind, length = _ANSWER.unpack(read(wire, _ANSWER.size))
    if kind == _REFUSED:
        reason = read(wire, min(length, _MAX_REASON_BYTES)).decode(errors="replace")
        raise TransferFailed(f"the other shard has none for it: {reason}")
    if (kind, length) != (_OK, num_bytes):
        raise TransferFailed(f"the other shard announces {length} bytes in place of {num_bytes}")


def read(wire: Wire, num_bytes: int) -> bytearray:
    """So many bytes."""
    buffer = bytearray(num_bytes)
    read_into(wire, memoryview(buffer))
    return buffer


def read_into(wire: Wire, buffer: memoryview) -> None:
    """Read until the buffer is full."""
    while len(buffer) > 0:
        count = wire.recv_into(buffer)
        if count == 0:
            raise TransferFailed("the connection to the other shard ended early")
        buffer = buffer[count:]


def parts(blocks: list[int], block_bytes: int) -> list[list[int]]:
    """Split the blocks into parts."""
    size = max(1, PART_BYTES // block_bytes)
    return [blocks[start : start + size] for start in range(0, len(blocks), size)]
