//! The fields that clients of other servers send to chat completions and completions. A table says what becomes of each:
//! it works, it is accepted without effect, or it is refused by name. Only unknown names are ignored, and with
//! `--strict-fields` they are refused, too.

mod body;
mod field;
mod table;

pub use body::Known;
pub use field::{HasKnownFields, On, is_neutral};

#[cfg(test)]
mod tests;
