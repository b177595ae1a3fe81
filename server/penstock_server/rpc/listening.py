"""The gRPC server on its Unix socket."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from penstock_server.base.config import MAX_MESSAGE_BYTES
from penstock_server.base.errors import StartError
from penstock_server.pb import engine_pb2_grpc
from penstock_server.rpc.interceptor import ErrorInterceptor
from penstock_server.rpc.service import EngineService

# A stream holds a thread: one Run, a Watch per router, health and Describe in passing.
_NUM_THREADS = 32


def listen(path: Path, service: EngineService, health_service: health.HealthServicer) -> grpc.Server:
    """A server that is bound to a socket and not yet started; raises StartError where that cannot be."""
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grpc")
    server = grpc.server(pool, interceptors=[ErrorInterceptor()], options=options)
    engine_pb2_grpc.add_EngineServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    before = os.umask(0o177)  # the socket is for this user alone from the moment it exists
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError:
        raise StartError(f"{path}: cannot listen on this socket; check that its folder is writable") from None
    finally:
        os.umask(before)
    return server
