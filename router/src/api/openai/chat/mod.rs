//! `/v1/chat/completions`.

mod encoder;
pub mod handler;
pub mod request;
mod wishes;
