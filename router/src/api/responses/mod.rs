//! OpenAI's newer dialect, `/v1/responses`, without stored state: each request has its whole conversation.

pub mod compact;
pub mod documented;
pub mod documented_events;
mod encoder;
pub mod errors;
pub mod handler;
mod input;
mod request;
mod response;
mod settings;
pub mod socket;

pub use encoder::ResponsesEncoder;
pub use request::{ResponsesRequest, Truncation};
pub use response::{OutputItem, OutputText, ResponseObject, Settings, new_id};
