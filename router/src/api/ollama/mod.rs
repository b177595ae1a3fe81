//! Ollama's dialect, which desktop programs speak: `/api/chat`, `/api/generate`, and what they ask about the model. A
//! request becomes a chat completion request.

mod encoder;
pub mod errors;
pub mod handler;
mod message;
pub mod models;
pub mod options;
mod request;
mod response;

pub use request::{ChatRequest, GenerateRequest};
pub use response::LineSchema;
