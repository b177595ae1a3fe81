//! `/v1/chat/completions`.

mod display_options;
pub mod encoder;
pub mod handler;
pub mod request;
