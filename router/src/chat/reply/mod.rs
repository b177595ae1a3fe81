//! Parses a model's reply while it is written: reasoning, text, calls of tools. The events do not depend on where the
//! text was cut into pieces.

mod constraint;
mod custom_input;
mod deepseek;
mod events;
mod format;
mod harmony;
mod hermes;
mod json_call;
mod json_calls;
mod marker;
mod mistral;
mod pythonic;
mod reasoning;
mod reply_parser;
mod style;
mod tool_parser;

pub use constraint::{Constraint, Part};
pub use custom_input::CustomInput;
pub use events::ReplyEvent;
#[cfg(test)]
pub use format::Thinking;
pub use format::{ReplyFormat, ToolFormat};
pub use reply_parser::ReplyParser;
pub use style::ReplyStyle;

#[cfg(test)]
mod tests;
