"""Completions streamed over raw asyncio sockets, so that the client takes little processor time."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class StreamFailed(Exception):
    """The server ended a stream with an error."""


@dataclass
class Stream:
    """When the request was sent, when each piece of text arrived, and the usage that the server reported."""

    sent: float = 0.0
    at: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft(self) -> float:
        return self.at[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.at, self.at[1:], strict=False)]


async def complete(
    address: tuple[str, int],
    prompt: str,
    num_tokens: int,
    stream: Stream | None = None,
    options: Mapping[str, object] | None = None,
) -> Stream:
    """Requests exactly `num_tokens` tokens, greedily, unless `options` (further fields of the request) override that.

    A `stream` that is given can be watched while it fills.
    """
    body = {
        "prompt": prompt,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(options or {}),
    }
    reader, writer = await asyncio.open_connection(*address)
    stream = stream or Stream()
    stream.sent = time.perf_counter()
    writer.write(_http("/v1/completions", json.dumps(body).encode()))
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status.decode().strip()}: {(await reader.read(2000)).decode()}")
    async for line in reader:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            break
        _take(stream, json.loads(data))
    writer.close()
    return stream


def _take(stream: Stream, event: dict[str, Any]) -> None:
    if event.get("error"):
        raise StreamFailed(event["error"]["message"])
    if event.get("usage"):
        stream.usage = event["usage"]
    elif event["choices"][0]["text"]:
        stream.at.append(time.perf_counter())


def _http(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
