//! Conversations: from messages and tools to tokens, and from the model's text back to reasoning, text and tool calls.

mod conversation;
mod message;
mod message_schema;
mod prediction;
mod python_json;
mod python_text;
pub(crate) mod reply;
pub mod template;
pub(crate) mod tools;
mod truncation;

pub use conversation::{ChatFormat, ChatFormatError, Conversation, EncodedChat};
pub use message::Message;
pub use prediction::Prediction;
