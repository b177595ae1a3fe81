//! What rate limits count.

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Requests of routes that do work.
    Requests,
    /// Tokens of prompts and outputs.
    Tokens,
}

impl Counted {
    /// As messages and headers name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
        }
    }
}
