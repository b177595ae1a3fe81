//! The role of a replica: which part of a request it computes.

use serde::Serialize;
use utoipa::ToSchema;

/// What a replica is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It computes prompts and generates.
    #[default]
    Both,
    /// It computes prompts, and others generate.
    Prefill,
    /// It generates what others have computed the prompt of; where there are no others, it does all.
    Decode,
}

impl Role {
    /// The role with the name that shards report; those that report none do both.
    pub fn named(name: &str) -> Self {
        match name {
            "prefill" => Self::Prefill,
            "decode" => Self::Decode,
            _ => Self::Both,
        }
    }

    /// Whether new requests go to it.
    pub fn computes_prompts(self) -> bool {
        self != Self::Decode
    }

    /// Whether requests with a prompt that is computed go to it.
    pub fn takes_over(self) -> bool {
        self != Self::Prefill
    }
}
