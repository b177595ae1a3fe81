//! What all HTTP handlers share: their state, bodies in, streams out, keys, limits, layers and connections.

pub mod answer_stream;
pub mod auth;
pub mod body;
pub mod cors;
pub mod errors;
pub mod layers;
pub mod rate_limit;
pub mod server;
pub mod sse;
pub mod state;
