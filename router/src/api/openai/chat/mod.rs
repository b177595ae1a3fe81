//! `/v1/chat/completions`.

mod display_options;
mod encoder;
pub mod handler;
pub mod request;
