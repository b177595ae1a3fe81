//! The chat templates of a model folder, and rendering them.

mod environment;
mod files;
mod options;
mod templates;

pub use files::ChatTemplateError;
pub use options::TemplateOptions;
pub use templates::{ChatTemplates, TemplateInput};
