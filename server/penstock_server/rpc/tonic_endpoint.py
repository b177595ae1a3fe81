"""The endpoint in Rust: gRPC by tonic on a thread that never takes the interpreter's lock (`endpoint/` in the sources).

It decodes plans and encodes outcomes: they pass it as columns of numbers (`columns`).
"""

import logging
import threading

import penstock_endpoint

from penstock_server.base.config import MAX_MESSAGE_BYTES
from penstock_server.base.errors import PenstockError, ShardFailed
from penstock_server.engine.outcome import Outcome
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.calls import Calls
from penstock_server.rpc.columns import outcome_to_columns, plan_from_columns
from penstock_server.rpc.conversion import Encoding
from penstock_server.rpc.listeners import Listeners, tell
from penstock_server.rpc.private_socket import private_umask
from penstock_server.rpc.statuses import Code, code_of
from penstock_server.rpc.streams import Session, Taken

logger = logging.getLogger(__name__)

# Calls that wait for others have threads of their own; all others are answered one after the other.
_WAITING = frozenset({"FetchBlocks"})


class _Session:
    """A stream that the endpoint in Rust serves."""

    def __init__(self, stream: penstock_endpoint.Stream, encoding: Encoding) -> None:
        self.epoch = stream.epoch
        self._stream = stream
        self._encoding = encoding

    @property
    def closed(self) -> bool:
        """See `Session`."""
        return self._stream.closed

    def deliver(self, outcome: Outcome) -> None:
        """See `Session`."""
        self._stream.deliver(outcome_to_columns(outcome, self._encoding))

    def close(self, error: PenstockError | None = None) -> None:
        """See `Session`."""
        if error is None:
            self._stream.close()
        else:
            self._stream.close(code_of(error), str(error))


class _Streams:
    """The streams of the endpoint in Rust."""

    def __init__(self, endpoint: penstock_endpoint.Endpoint, encoding: Encoding) -> None:
        self._endpoint = endpoint
        self._encoding = encoding
        # The session of the newest stream that was taken.
        self._session: _Session | None = None

    def take(self, at_most_s: float | None) -> Taken | None:
        """See `Streams`."""
        taken = self._endpoint.take(at_most_s)
        if taken is None:
            return None
        stream, plan = taken
        if stream is None:
            return Taken(None, None)
        if self._session is None or self._session.epoch != stream.epoch:
            self._session = _Session(stream, self._encoding)
        if plan is None:
            return Taken(self._session, None)
        try:
            return Taken(self._session, plan_from_columns(plan))
        except PenstockError as error:
            self._session.close(error)
            return None

    def set_running(self, runs: bool) -> None:
        """See `Streams`."""
        self._endpoint.set_running(runs)

    def set_finished(self, session: Session, step: int) -> None:
        """See `Streams`."""
        self._endpoint.set_finished(session.epoch, step)

    def fail(self, error: ShardFailed) -> None:
        """See `Streams`."""
        self._endpoint.fail(code_of(error), str(error))

    def rest(self) -> None:
        """See `Streams`."""
        self._endpoint.rest()

    def stop(self) -> None:
        """See `Streams`."""
        error = ShardFailed("the shard is stopping")
        self._endpoint.fail(code_of(error), str(error))
        self.rest()


class TonicEndpoint:
    """Bound to its sockets from the beginning; raises StartError where that cannot be."""

    def __init__(
        self, listeners: Listeners, description: pb.DescribeResponse, encoding: Encoding, calls: Calls
    ) -> None:
        path, tcp = listeners
        try:
            with private_umask():
                self._endpoint = penstock_endpoint.Endpoint(
                    str(path),
                    description.SerializeToString(),
                    MAX_MESSAGE_BYTES,
                    tcp=(tcp.host, tcp.port) if tcp else None,
                    secret=tcp.secret if tcp else None,
                    tls=tcp.tls.texts() if tcp and tcp.tls else None,
                )
        except (OSError, ValueError) as error:
            raise listeners.failed(error) from None
        if tcp is not None and self._endpoint.tcp_port is not None:
            tell(tcp, self._endpoint.tcp_port)
        self.streams = _Streams(self._endpoint, encoding)
        self._calls = calls

    def start(self) -> None:
        """See `Endpoint`."""
        threading.Thread(target=self._answer_calls, name="calls", daemon=True).start()
        self._endpoint.start()

    def describe(self, description: pb.DescribeResponse) -> None:
        """See `Endpoint`."""
        self._endpoint.describe(description.SerializeToString())

    def _answer_calls(self) -> None:
        while (call := self._endpoint.take_call()) is not None:
            if call.method in _WAITING:
                threading.Thread(target=self._answer, args=(call,), name=call.method, daemon=True).start()
            else:
                self._answer(call)

    def _answer(self, call: penstock_endpoint.Call) -> None:
        try:
            call.answer(self._calls.answer(call.method, call.request))
        except PenstockError as error:
            call.refuse(code_of(error), str(error))
        except Exception as error:
            # Whatever it is: calls that nobody answers would wait for ever.
            logger.exception("unexpected error in a call")
            call.refuse(Code.INTERNAL, f"unexpected {type(error).__name__}; the shard's log has the details")

    def stop(self, grace_s: float) -> None:
        """See `Endpoint`."""
        self.streams.stop()
        self._endpoint.stop(grace_s)
