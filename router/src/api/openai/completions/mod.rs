//! `/v1/completions`.

pub mod choice;
mod echo;
mod encoder;
pub mod handler;
pub mod request;
