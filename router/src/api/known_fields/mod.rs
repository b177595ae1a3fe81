//! The fields that clients send, of all bodies. Tables say what becomes of each: it works, it is accepted without effect,
//! or it is refused by name. Only unknown names are ignored, and with `--strict-fields` they are refused, too.

mod bodies;
mod body;
mod field;
mod names;
mod table;

pub use body::Known;
pub use field::{HasKnownFields, On, is_neutral};

#[cfg(test)]
mod tests;
