"""The endpoint in Python: the server of grpcio, whose threads read plans and send outcomes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from penstock_server.base.config import MAX_MESSAGE_BYTES
from penstock_server.base.errors import StartError
from penstock_server.pb import engine_pb2 as pb
from penstock_server.pb import engine_pb2_grpc
from penstock_server.rpc.calls import Calls
from penstock_server.rpc.conversion import Encoding
from penstock_server.rpc.interceptor import ErrorInterceptor
from penstock_server.rpc.private_socket import private_umask
from penstock_server.rpc.service import EngineService
from penstock_server.rpc.streams import QueuedStreams

# A stream holds a thread: one Run, a Watch per router, health and Describe in passing.
_NUM_THREADS = 32
_SERVICE_NAMES = ("", "penstock.engine.v1.Engine")


class GrpcioEndpoint:
    """Bound to its socket from the beginning; raises StartError where that cannot be."""

    def __init__(
        self, path: Path, description: pb.DescribeResponse, encoding: Encoding, calls: Calls
    ) -> None:
        self.streams = QueuedStreams()
        self._service = EngineService(self.streams, description, encoding, calls)
        self._health = health.HealthServicer(experimental_non_blocking=True)
        self._server = _server()
        engine_pb2_grpc.add_EngineServicer_to_server(self._service, self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        with private_umask():
            try:
                self._server.add_insecure_port(f"unix:{path}")
            except RuntimeError:
                raise StartError(
                    f"{path}: cannot listen on this socket; check that its folder is writable"
                ) from None

    def start(self) -> None:
        """As `Endpoint` has it."""
        self._server.start()
        for name in _SERVICE_NAMES:
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace_s: float) -> None:
        """As `Endpoint` has it."""
        self._health.enter_graceful_shutdown()
        self._service.stopping.set()
        self.streams.stop()
        self._server.stop(grace_s).wait()


def _server() -> grpc.Server:
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grpc")
    return grpc.server(pool, interceptors=[ErrorInterceptor()], options=options)
