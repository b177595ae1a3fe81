"""The gRPC service: streams of plans in, outcomes out. Protobuf ends here."""
