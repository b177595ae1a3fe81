//! The messages of proto/engine.proto.
#![expect(unused_qualifications, reason = "generated")]

tonic::include_proto!("penstock.engine.v1");
