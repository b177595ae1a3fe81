"""Rows of small unsigned integers as streams of bits: value i of a row begins at bit i * bits, lowest bits first.

So 4-bit values lie two in a byte, the first in its low half, and 3-bit values lie eight in three bytes. Words of 32
bits that are filled from their low end, in memory as a processor of today has them, are the same bytes.
"""

import torch

# The most values that are packed at a time: each takes 8 bytes then.
_MAX_NUMBERS = 1 << 22


def stream_bytes(count: int, bits: int) -> int:
    """The number of bytes that a row of `count` values takes."""
    return -(-count * bits // 8)


def unpack(stream: torch.Tensor, bits: int, first: int, count: int) -> torch.Tensor:
    """Values `first .. first + count` of every row: uint8 [rows, bytes] to uint8 [rows, count]."""
    if bits == 8:
        return stream[:, first : first + count]
    if 8 % bits == 0:
        return _unpack_whole(stream, bits, first, count)
    begins = torch.arange(first, first + count, device=stream.device) * bits
    # A value may lie across two bytes; behind the last byte there is nothing, and nothing of it is used.
    padded = torch.nn.functional.pad(stream, (0, 1)).int()
    low, high = padded[:, begins // 8], padded[:, begins // 8 + 1]
    return ((low | high << 8) >> (begins % 8) & (1 << bits) - 1).to(torch.uint8)


def _unpack_whole(stream: torch.Tensor, bits: int, first: int, count: int) -> torch.Tensor:
    """`unpack` for values of which a whole number fills a byte."""
    each = 8 // bits
    part = stream[:, first // each : -(-(first + count) // each)]
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=stream.device)
    values = (part.unsqueeze(-1) >> shifts & (1 << bits) - 1).flatten(1)
    return values[:, first % each : first % each + count]


def pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of values below 2 ** bits as streams: uint8 [rows, count] to uint8 [rows, bytes]."""
    if bits == 8:
        return values.contiguous()
    rows, count = values.shape
    step = max(1, _MAX_NUMBERS // max(1, count))
    found = torch.empty(rows, stream_bytes(count, bits), dtype=torch.uint8, device=values.device)
    for start in range(0, rows, step):
        found[start : start + step] = _pack_rows(values[start : start + step], bits)
    return found


def _pack_rows(values: torch.Tensor, bits: int) -> torch.Tensor:
    rows, count = values.shape
    # Eight values fill as many bytes as a value has bits.
    eights = torch.nn.functional.pad(values, (0, -count % 8)).reshape(rows, -1, 8).long()
    words = (eights << torch.arange(0, 8 * bits, bits, device=values.device)).sum(-1, keepdim=True)
    found = words >> torch.arange(0, 8 * bits, 8, device=values.device) & 255
    return found.to(torch.uint8).flatten(1)[:, : stream_bytes(count, bits)]


def columns_of(stream: torch.Tensor, bits: int, start: int, stop: int) -> torch.Tensor:
    """The stream of some columns: a view where they begin with a byte, else a copy."""
    if bits == 8:
        return stream[:, start:stop]
    if start * bits % 8:
        return pack(unpack(stream, bits, start, stop - start), bits)
    return stream[:, start * bits // 8 : stream_bytes(stop, bits)]
