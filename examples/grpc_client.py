"""Generates over gRPC: `python examples/grpc_client.py "Once upon a time"`, beside `launcher --grpc-port 3001`.

The stubs come with the package; for other languages they are generated from proto/api.proto, or read by reflection.
"""

import argparse
import sys
from collections.abc import Iterator

import grpc
from penstock_server.pb import api_pb2, api_pb2_grpc


def generate(stub: api_pb2_grpc.InferenceStub, text: str, max_tokens: int, key: str) -> Iterator[str]:
    """Yields the text piece by piece. Closing the iterator also ends the generation."""
    request = api_pb2.GenerateRequest(text=text, max_tokens=max_tokens)
    for response in stub.Generate(request, metadata=[("authorization", f"Bearer {key}")]):
        if response.WhichOneof("event") == "token":
            yield response.token.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("--address", default="127.0.0.1:3001")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--key", default="any", help="one of the server's keys")
    args = parser.parse_args()
    with grpc.insecure_channel(args.address) as channel:
        stub = api_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
        try:
            for piece in generate(stub, args.text, args.max_tokens, args.key):
                print(piece, end="", flush=True)
        except grpc.RpcError as error:
            sys.exit(f"\n{error.code().name}: {error.details()}")
    print()


if __name__ == "__main__":
    main()
