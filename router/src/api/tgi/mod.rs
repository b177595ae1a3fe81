//! TGI's dialect: `/generate`, `/generate_stream` and `/`.

mod encoder;
pub mod errors;
pub mod handler;
mod request;
mod response;
mod wording;

pub use request::{GenerateParameters, GenerateRequest, Wishes};
pub use response::{
    BestOfSequence, Details, GenerateResponse, PrefillToken, StreamDetails, StreamResponse, Token,
};
pub use wording::{Wording, finish_reason};
