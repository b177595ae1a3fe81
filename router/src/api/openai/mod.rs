//! OpenAI's dialect: chat completions and completions. Every field of a request may be null, and unknown fields are
//! ignored. Fields of the specification that are not supported are refused by name.

pub mod chat;
pub mod completions;
pub mod documented;
pub mod errors;
mod fields;
mod response;
mod timings;

pub use chat::request::ChatRequest;
pub use completions::request::CompletionRequest;
pub use fields::{Seed, Stop, StreamOptions};
pub use response::{CompletionObject, Head, SERVICE_TIER, Usage};
pub use timings::Timings;

#[cfg(test)]
mod tests;
