//! Conversations: from messages and tools to tokens, and from the model's text back to reasoning, text and tool calls.

pub mod conversation;
pub mod message;
pub mod python_json;
pub mod reply;
pub mod template;
pub mod tools;

pub use conversation::{ChatFormat, ChatFormatError, Conversation, EncodedChat};
pub use message::Message;
