//! Anthropic's dialect: `/v1/messages`.

mod content;
pub mod documented;
mod encoder;
pub mod errors;
pub mod handler;
mod options;
mod request;
mod response;
mod tools;

pub use encoder::MessagesEncoder;
pub use options::AppliedContextManagement;
pub use request::MessagesRequest;
pub use response::{MessagesResponse, OutputBlock, TokenCount, Usage, stop_reason};
