"""The endpoint in Python: servers of grpcio, whose threads read plans and send outcomes."""

from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from penstock_server.base.config import MAX_MESSAGE_BYTES, TcpConfig
from penstock_server.base.mutual_tls import MutualTls
from penstock_server.pb import engine_pb2 as pb
from penstock_server.pb import engine_pb2_grpc
from penstock_server.rpc.calls import Calls
from penstock_server.rpc.conversion import Encoding
from penstock_server.rpc.interceptor import ErrorInterceptor
from penstock_server.rpc.listeners import Listeners, tell
from penstock_server.rpc.private_socket import private_umask
from penstock_server.rpc.secret import SecretInterceptor
from penstock_server.rpc.service import EngineService
from penstock_server.rpc.streams import QueuedStreams

# A stream holds a thread: one Run, a Watch per router, health and Describe in passing.
_NUM_THREADS = 32
_SERVICE_NAMES = ("", "penstock.engine.v1.Engine")
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]


def _credentials(tls: MutualTls) -> grpc.ServerCredentials:
    """The credentials of a server that refuses clients without a certificate of the authority."""
    cert, key, ca = tls.texts()
    return grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=True)


class GrpcioEndpoint:
    """Bound to its sockets from the beginning; raises StartError where that cannot be."""

    def __init__(
        self, listeners: Listeners, description: pb.DescribeResponse, encoding: Encoding, calls: Calls
    ) -> None:
        self.streams = QueuedStreams()
        self._service = EngineService(self.streams, description, encoding, calls)
        self._health = health.HealthServicer(experimental_non_blocking=True)
        self._servers = [self._server()]
        try:
            with private_umask():
                self._servers[0].add_insecure_port(f"unix:{listeners.path}")
            if listeners.tcp is not None:
                self._listen(listeners.tcp)
        except RuntimeError as error:
            raise listeners.failed(error) from None

    def _listen(self, tcp: TcpConfig) -> None:
        server = self._server(*([SecretInterceptor(tcp.secret)] if tcp.secret else []))
        host = f"[{tcp.host}]" if ":" in tcp.host else tcp.host
        address = f"{host}:{tcp.port}"
        if tcp.tls is None:
            tell(tcp, server.add_insecure_port(address))
        else:
            tell(tcp, server.add_secure_port(address, _credentials(tcp.tls)))
        self._servers.append(server)

    def _server(self, *before: grpc.ServerInterceptor) -> grpc.Server:
        pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grpc")
        server = grpc.server(pool, interceptors=[*before, ErrorInterceptor()], options=_OPTIONS)
        engine_pb2_grpc.add_EngineServicer_to_server(self._service, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server

    def start(self) -> None:
        """See `Endpoint`."""
        for server in self._servers:
            server.start()
        for name in _SERVICE_NAMES:
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def describe(self, description: pb.DescribeResponse) -> None:
        """See `Endpoint`."""
        self._service.description = description

    def stop(self, grace_s: float) -> None:
        """See `Endpoint`."""
        self._health.enter_graceful_shutdown()
        self._service.stopping.set()
        self.streams.stop()
        for stopped in [server.stop(grace_s) for server in self._servers]:
            stopped.wait()
