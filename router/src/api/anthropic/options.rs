//! Anthropic's fields about the form of an answer and about what becomes of a long conversation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::api::responses::documented::TextFormatSchema;
use crate::base::error::Error;

/// How much the model reasons, and what its answer must be.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicOutputConfig)]
pub struct OutputConfig {
    /// `low`, `medium`, `high`, `xhigh` or `max`: the variable `reasoning_effort` of the chat template.
    pub effort: Option<Effort>,
    /// `json_schema` with a `schema`; the other types are extensions.
    #[schema(value_type = Option<TextFormatSchema>)]
    pub format: Option<Value>,
    /// Refused.
    pub task_budget: Option<Value>,
}

/// How much the model reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = AnthropicEffort)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

impl Effort {
    /// The name that the chat template gets.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
            Self::Max => "max",
        }
    }
}

/// What is left out of a long conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicContextManagement)]
pub struct ContextManagement {
    /// May hold `clear_thinking_20251015`, as the thoughts of earlier turns are left out anyway. Others are refused.
    #[schema(value_type = Option<Vec<Map<String, Value>>>)]
    pub edits: Option<Vec<Map<String, Value>>>,
}

impl ContextManagement {
    /// Refuses edits that are not made.
    pub fn check(&self) -> Result<(), Error> {
        let is_made = |edit: &Map<String, Value>| edit.get("type").is_some_and(|kind| kind == CLEAR_THINKING);
        if self.edits.iter().flatten().all(is_made) {
            return Ok(());
        }
        Err(Error::NotSupported("context_management.edits"))
    }
}

const CLEAR_THINKING: &str = "clear_thinking_20251015";

/// What was left out of the conversation: nothing that is counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = AnthropicAppliedContextManagement)]
pub struct AppliedContextManagement {
    pub applied_edits: Vec<Value>,
}
