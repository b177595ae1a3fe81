//! From a prompt and parameters to running sequences and their text: limits, validation, and the runner that handlers call.

pub mod limits;
pub mod runner;
pub mod served_model;
pub mod text_stream;
pub mod validation;

pub use runner::{Inference, Prepared, Prompt};
