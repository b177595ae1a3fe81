//! TGI's dialect: `/generate`, `/generate_stream` and `/`.

mod encoder;
pub mod errors;
pub mod handler;
mod request;
mod response;
mod response_writer;

pub use request::{DisplayOptions, GenerateParameters, GenerateRequest};
pub use response::{
    BestOfSequence, Details, GenerateResponse, PrefillToken, StreamDetails, StreamResponse, Token,
};
pub use response_writer::{ResponseWriter, finish_reason, output_token};
