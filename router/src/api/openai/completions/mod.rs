//! `/v1/completions`.

pub mod choice;
mod encoder;
pub mod handler;
pub mod request;
