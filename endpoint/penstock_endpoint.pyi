"""The shard's end of the wire as an extension module. One thread steps, another answers rare calls."""

from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

@final
class Plan:
    """A plan as columns of numbers, each the bytes of its 64-bit integers."""

    def __new__(cls, encoded: bytes) -> Plan:
        """Decode a message; raises ValueError where it is none."""
    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def admitted(self) -> list[bytes]:
        """The encoded admissions."""
    @property
    def spans(self) -> bytes | None:
        """Of the spans: slots, starts and lengths, one column after the other; None unless they match."""
    @property
    def appended(self) -> list[bytes] | None:
        """Slots, counts and blocks of what is appended; None unless a slot gets blocks."""
    @property
    def is_more(self) -> bool:
        """Whether it does more than to append blocks and to compute spans."""
    @property
    def more(self) -> list[tuple[str, list[int]]]:
        """The columns of what `is_more` asks for, by name."""

@final
class Outcome:
    """What a step chose, ready to be encoded."""

    def __new__(
        cls,
        epoch: int,
        step: int,
        slots: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int64],
        logprobs: npt.NDArray[np.float32],
        tells_tokens: bool,
        timings: Sequence[int],
        rest: bytes,
    ) -> Outcome:
        """`rest`: an encoded message of the fields that are not here."""
    def encoded(self) -> bytes:
        """The message."""

@final
class Stream:
    """A stream of plans, as the thread that steps sees it."""

    @property
    def epoch(self) -> int: ...
    @property
    def closed(self) -> bool:
        """Whether nobody reads it any more."""
    def deliver(self, outcome: Outcome) -> None:
        """Send an outcome. It is encoded where it is sent: the thread that steps goes on."""
    def close(self, code: int | None = None, message: str = "") -> None:
        """End the stream, with the number of a gRPC code and a message or without; later calls change nothing."""

@final
class Call:
    """A call that is to be answered, once."""

    @property
    def method(self) -> str: ...
    @property
    def request(self) -> bytes:
        """The encoded request."""
    def answer(self, encoded: bytes) -> None:
        """Answer with an encoded message."""
    def refuse(self, code: int, message: str) -> None:
        """Answer with the number of a gRPC code and a message."""

@final
class Endpoint:
    """The server on its Unix socket, and on a TCP address if there is one."""

    def __new__(
        cls,
        path: str,
        description: bytes,
        max_message_bytes: int,
        tcp: tuple[str, int] | None = None,
        secret: str | None = None,
        tls: tuple[bytes, bytes, bytes] | None = None,
    ) -> Endpoint:
        """Bind the socket, and the TCP address if there is one; raises OSError where that cannot be.

        `description`: an encoded DescribeResponse. `secret`: what every call to the TCP address has to bring. `tls`:
        certificate, key and the authority that whoever connects there has to have a certificate of, in PEM format;
        raises ValueError where they are of no use.
        """
    @property
    def tcp_port(self) -> int | None:
        """Of the TCP address, if there is one."""
    @property
    def last_epoch(self) -> int:
        """The greatest epoch seen."""
    def start(self) -> None:
        """Begin to serve; the health service says so."""
    def take(self, at_most_s: float | None = None) -> tuple[Stream | None, Plan | None] | None:
        """The next plan with its stream, or a stream without a plan for its end, or neither because of `rest`.

        None if nothing came for so many seconds.
        """
    def take_call(self) -> Call | None:
        """The next call that is to be answered beside the steps; None when the process stops. For one thread."""
    def set_running(self, runs: bool) -> None:
        """Whether a step runs, from now on."""
    def set_finished(self, epoch: int, step: int) -> None:
        """A step is computed."""
    def fail(self, code: int, message: str) -> None:
        """End the open stream, and those to come, with the number of a gRPC code and a message."""
    def rest(self) -> None:
        """Tell the thread that steps to take no more: it is wanted for something else, or the process stops."""
    def describe(self, description: bytes) -> None:
        """From now on the shard is described so: an encoded DescribeResponse."""
    def stop(self, grace_s: float) -> None:
        """End calls and heartbeats; waits so long at most for answers on their way."""
