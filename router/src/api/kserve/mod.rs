//! KServe's dialect, version 2 of the Open Inference Protocol, below `/v2`: health, metadata, texts (`generate`), and
//! texts as tensors (`infer`).

pub mod about;
mod encoder;
pub mod errors;
pub mod handler;
pub mod infer;
mod path;
pub mod request;
mod response;

pub use request::TextRequest;
pub use response::{TextEvent, TextResponse};
