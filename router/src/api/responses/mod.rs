//! OpenAI's newer dialect, `/v1/responses`, without stored state: each request has its whole conversation.

mod encoder;
pub mod handler;
mod input;
mod request;
mod response;

pub use encoder::ResponsesEncoder;
pub use request::ResponsesRequest;
pub use response::{OutputItem, OutputText, ResponseObject, Settings, new_id};
