//! OpenAI's dialect: chat completions and completions. Every field of a request may be null. `known_fields` says which
//! fields are refused or ignored.

pub mod chat;
pub mod completions;
mod constraint;
pub mod documented;
pub mod errors;
mod fields;
mod prompt_details;
mod response;
mod timings;

pub use chat::request::ChatRequest;
pub use completions::request::CompletionRequest;
pub use fields::{LogitBias, Seed, Stop, StreamOptions};
pub use prompt_details::{PromptDetails, PromptDisplay};
pub use response::{CachedPrompt, CompletionObject, Head, SERVICE_TIER, Usage};
pub use timings::Timings;

#[cfg(test)]
mod tests;
