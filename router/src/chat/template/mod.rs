//! The chat templates of a model folder, and rendering them.

mod environment;
mod files;
mod templates;

pub use files::ChatTemplateError;
pub use templates::{ChatTemplates, TemplateInput};
