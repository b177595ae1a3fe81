//! Grammars in EBNF, as clients of SGLang, vLLM and llama.cpp write them (`root ::= "a" | [0-9]+`): read, and written in
//! Lark, which llguidance compiles.

mod parse;
mod rules;
mod to_lark;

pub(super) use to_lark::to_lark;

#[cfg(test)]
mod tests;
