//! Runs requests: limits, validation, and [`Inference`], which turns a prompt and parameters into running sequences and
//! their text. All handlers, of HTTP and of gRPC, call it.

mod finish;
pub mod limits;
mod runner;
pub mod served_model;
pub(crate) mod text_stream;
pub(crate) mod validation;
mod visible_text;

pub use runner::{Inference, Prepared, Prompt};
