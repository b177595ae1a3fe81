"""The secret that calls over TCP bring in their metadata, for the server of grpcio."""

import hmac
from collections.abc import Callable, Iterator
from typing import Any

import grpc

_NAME = "penstock-secret"


class SecretInterceptor(grpc.ServerInterceptor):
    """Lets calls pass that have the secret; compared in constant time. No message of another is read."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        given = dict(details.invocation_metadata).get(_NAME, "")
        if hmac.compare_digest(self._secret, given if isinstance(given, bytes) else given.encode()):
            return continuation(details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


def _refuse(_requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the secret of the replica is missing or wrong")
    yield b""  # never reached: it makes this a stream
