//! What constrains an output: read from what clients send (`parse`), and compiled before the request is accepted, so that a
//! grammar is refused with a reason or works. Compiling happens on threads of its own, with limits on what a grammar may
//! cost. The shards compile it again, under the same limits, and compute the masks.

mod cache;
mod compiler;
mod grammars;
mod lark;
mod limits;
mod multiples;
mod parse;
mod schema;

pub use grammars::Grammars;
pub(crate) use parse::schema_text;
pub use parse::{from_native, from_response_format, from_text, from_text_format};

#[cfg(test)]
mod suite;
