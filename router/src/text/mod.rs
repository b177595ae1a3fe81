//! Text to tokens and back: tokenizers and the threads that run them, stop strings, control tokens.

pub mod control_tokens;
pub mod detokenizer;
pub mod stop;
pub mod tokenizer;
pub mod workers;
