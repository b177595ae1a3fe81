//! The types generated from `proto/api.proto`, whose comments are their documentation.
#![expect(missing_docs, unused_qualifications, reason = "generated")]

tonic::include_proto!("penstock.api.v1");
