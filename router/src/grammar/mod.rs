//! Grammars, which constrain an output: read from requests (`parse`), and compiled before a request is accepted, so
//! that a grammar either works or is refused with a reason. They are compiled on threads of their own, with limits on
//! what a grammar may cost. The shards compile them again, under the same limits, and compute the masks.

mod cache;
mod compiler;
mod ebnf;
mod fields;
mod grammars;
mod json_string;
mod lark;
mod limits;
mod multiples;
mod objects;
mod parse;
mod schema;

pub(crate) use fields::from_field;
pub use grammars::Grammars;
pub(crate) use json_string::{quoted_lark, quoted_regex};
pub(crate) use parse::{
    from_native, from_ollama_format, from_output_format, from_response_format, from_text, from_text_format,
    schema_text,
};

#[cfg(test)]
mod suite;
