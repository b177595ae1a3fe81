"""The shard's end of the wire, behind one seam: who serves gRPC on its sockets."""

from typing import Protocol

from penstock_server.base.config import EndpointKind
from penstock_server.base.errors import StartError
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.calls import Calls
from penstock_server.rpc.conversion import Encoding
from penstock_server.rpc.listeners import Listeners
from penstock_server.rpc.streams import Streams


class Endpoint(Protocol):
    """A gRPC server, bound to its sockets. Protobuf and gRPC end here."""

    @property
    def streams(self) -> Streams:
        """The streams, for the thread that steps."""

    def start(self) -> None:
        """Begin to serve; the health service says so."""

    def describe(self, description: pb.DescribeResponse) -> None:
        """From now on the shard is described so."""

    def stop(self, grace_s: float) -> None:
        """End the open stream and the heartbeats, and wait so long at most for what is on its way."""


def open_endpoint(
    kind: EndpointKind,
    listeners: Listeners,
    description: pb.DescribeResponse,
    encoding: Encoding,
    calls: Calls,
) -> Endpoint:
    """The endpoint of this kind; `auto` takes the one in Rust where it is installed."""
    if kind != "grpcio":
        try:
            from penstock_server.rpc.tonic_endpoint import TonicEndpoint
        except ModuleNotFoundError as error:
            if error.name != "penstock_endpoint":
                raise
            if kind == "tonic":
                raise StartError("--endpoint tonic: penstock-endpoint is not installed") from None
        else:
            return TonicEndpoint(listeners, description, encoding, calls)
    from penstock_server.rpc.grpcio_endpoint import GrpcioEndpoint

    return GrpcioEndpoint(listeners, description, encoding, calls)
