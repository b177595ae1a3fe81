//! Text to tokens and back: tokenizers and the threads that run them, stop strings, control tokens.

pub(crate) mod control_tokens;
pub(crate) mod detokenizer;
pub mod fill_in_middle;
pub(crate) mod stop;
pub(crate) mod stop_regex;
pub mod tokenizer;
pub(crate) mod workers;
