//! The gRPC API for internal clients (`proto/api.proto`): the same keys, limits, validation and scheduler as HTTP. Its
//! protobuf types are known in this module alone.

mod answers;
mod connections;
mod health;
pub mod pb;
mod requests;
mod running;
mod serve;
mod service;
mod status;

pub use connections::Entrance;
pub use serve::serve;
