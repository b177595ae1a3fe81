//! The gRPC API for internal clients (`proto/api.proto`), with the same keys, limits, validation and scheduler as HTTP.
//! Its protobuf types are used in this folder only.

mod calls;
mod connections;
mod health;
pub mod pb;
mod requests;
mod responses;
mod running;
mod serve;
mod service;
mod status;

pub use connections::GrpcListener;
pub use serve::serve;
