//! llama.cpp's `/infill`, which editors call to fill in code at the cursor.

mod encoder;
pub mod errors;
pub mod handler;
mod request;
mod response;

pub use request::InfillRequest;
pub use response::{InfillChunk, InfillResponse};
