//! OpenAI's dialect: chat completions and completions. Lenient in, exact out: every field may be null, unknown ones are
//! ignored, and what is known and not built is refused by name.

pub mod chat;
pub mod completions;
pub mod errors;
mod fields;
mod response;

pub use chat::request::ChatRequest;
pub use completions::request::{CompletionRequest, Prompts};
pub use fields::{LogitBias, Seed, Stop, StreamOptions};
pub use response::{Answer, Head, PromptTokensDetails, Usage};

#[cfg(test)]
mod tests;
