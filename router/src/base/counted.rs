//! The quantities that rate limits count.

/// The quantity that a rate limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Requests of routes that do work.
    Requests,
    /// Tokens of prompts and outputs.
    Tokens,
}

impl Counted {
    /// The name in messages and headers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
        }
    }
}
