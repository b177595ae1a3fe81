//! Code that all HTTP handlers share: state, request bodies, response streams, errors, API keys, limits, layers and
//! connections.

pub mod auth;
pub mod body;
pub mod cors;
pub(crate) mod errors;
pub(crate) mod host;
pub(crate) mod layers;
pub(crate) mod ndjson;
pub(crate) mod rate_limit;
pub(crate) mod response_stream;
pub mod server;
pub mod socket;
pub(crate) mod sse;
pub mod state;
