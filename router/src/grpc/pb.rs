//! `proto/api.proto`, which explains what is here.
#![expect(missing_docs, unused_qualifications, reason = "generated")]

tonic::include_proto!("penstock.api.v1");
