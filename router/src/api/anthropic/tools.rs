//! Anthropic's fields for tools and reasoning: their checks, and their translation into chat completions.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::base::error::Error;

/// Whether the model reasons before it replies.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicThinking)]
pub struct Thinking {
    pub r#type: String,
    /// Checked but not enforced: `max_tokens` bounds the reasoning.
    pub budget_tokens: Option<u64>,
}

impl Thinking {
    /// Whether reasoning is turned on.
    pub fn is_on(&self) -> bool {
        self.r#type != "disabled"
    }

    /// Refuses an unknown type, and a budget that leaves no tokens for the reply.
    pub fn check(&self, max_tokens: Option<u64>) -> Result<(), Error> {
        match (self.r#type.as_str(), self.budget_tokens) {
            ("disabled" | "adaptive", _) | ("enabled", None) => Ok(()),
            ("enabled", Some(budget)) => check_budget(budget, max_tokens),
            (other, _) => {
                let other: String = other.chars().take(100).collect();
                let message =
                    format!("`thinking.type` must be enabled, adaptive or disabled. Given: {other:?}");
                Err(Error::invalid("thinking.type", message))
            }
        }
    }

    /// The variables that the chat templates of reasoning models read.
    pub fn into_template_kwargs(self) -> Map<String, Value> {
        Map::from_iter([("enable_thinking".to_owned(), self.is_on().into())])
    }
}

fn check_budget(budget: u64, max_tokens: Option<u64>) -> Result<(), Error> {
    if budget > 0 && max_tokens.is_none_or(|max_tokens| budget < max_tokens) {
        return Ok(());
    }
    let limit = max_tokens.map(|max_tokens| format!(" and < `max_tokens` ({max_tokens})"));
    let limit = limit.unwrap_or_default();
    let message = format!("`thinking.budget_tokens` must be > 0{limit}. Given: {budget}");
    Err(Error::invalid("thinking.budget_tokens", message))
}

/// A function that the model may call. Tools of another `type` than `custom` are Anthropic's own, and refused.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicTool)]
pub struct Tool {
    pub r#type: Option<String>,
    pub name: String,
    pub description: Option<String>,
    #[schema(value_type = Option<Map<String, Value>>)]
    pub input_schema: Option<Value>,
    /// Whether the request is refused if the schema cannot be enforced.
    pub strict: Option<bool>,
}

/// `auto`, `any`, `none`, or `tool` with a `name`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicToolChoice)]
pub struct ToolChoice {
    pub r#type: String,
    pub name: Option<String>,
    pub disable_parallel_tool_use: Option<bool>,
}

impl Tool {
    /// Whether it is a tool that Anthropic's servers run.
    pub fn is_run_by_anthropic(&self) -> bool {
        self.r#type.as_ref().is_some_and(|kind| kind != "custom")
    }

    /// Translates it into a tool of chat completions.
    pub fn into_function(self) -> Map<String, Value> {
        let Self { name, description, input_schema, strict, .. } = self;
        let function =
            json!({ "name": name, "description": description, "parameters": input_schema, "strict": strict });
        Map::from_iter([("type".to_owned(), "function".into()), ("function".to_owned(), function)])
    }
}

impl ToolChoice {
    /// Translates it into the `tool_choice` of chat completions.
    pub fn into_chat(self) -> Result<Value, Error> {
        match (self.r#type.as_str(), self.name) {
            (same @ ("auto" | "none"), _) => Ok(same.into()),
            ("any", _) => Ok("required".into()),
            ("tool", Some(name)) => Ok(json!({ "type": "function", "function": { "name": name } })),
            (other, _) => {
                let other: String = other.chars().take(100).collect();
                let message = format!(
                    "`tool_choice.type` must be auto, any, none, or tool with a `name`. Given: {other:?}"
                );
                Err(Error::invalid("tool_choice", message))
            }
        }
    }
}
