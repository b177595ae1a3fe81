//! OpenAI's newer dialect: `/v1/responses`, without a memory. Each request brings its whole conversation.

mod encoder;
pub mod handler;
mod input;
mod request;
mod response;

pub use encoder::ResponsesEncoder;
pub use input::{Content, Input, InputItem, Part};
pub use request::{Reasoning, ResponsesRequest, TextOptions};
pub use response::{OutputItem, OutputText, ResponseObject, ResponseUsage, Settings, new_id};
