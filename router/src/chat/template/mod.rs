//! The chat templates of a model folder, and rendering them.

mod bounded;
mod builtins;
mod environment;
mod files;
mod methods;
mod options;
mod templates;
mod tokenizer_info;

pub use files::ChatTemplateError;
pub use options::TemplateOptions;
pub use templates::{ChatTemplates, TemplateInput};
pub use tokenizer_info::tokenizer_info;
