//! The side of ZMTP 3.0, the protocol of ZMQ, that listens, without encryption: a greeting, a handshake, frames. Whoever
//! connects may send anything, so everything that is read is bounded.

pub mod frame;
mod handshake;

pub use handshake::{SocketKind, greet};
