//! The body of `/v1/messages`, which is translated into a [`ChatRequest`]. Fields of the specification that are not
//! supported are refused by name.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::content::{Content, InputMessage};
use super::tools::{Thinking, Tool, ToolChoice};
use crate::api::openai::{ChatRequest, Stop};
use crate::base::error::{Error, MISSING};
use crate::chat::Message;

/// The body of `/v1/messages` and `/v1/messages/count_tokens`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct MessagesRequest {
    pub model: Option<String>,
    pub messages: Vec<InputMessage>,
    /// Required by `/v1/messages`.
    pub max_tokens: Option<u64>,
    pub system: Option<Content>,
    pub stop_sequences: Option<Vec<String>>,
    pub stream: Option<bool>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub thinking: Option<Thinking>,
    pub tools: Option<Vec<Tool>>,
    pub tool_choice: Option<ToolChoice>,
    pub container: Option<Value>,
    pub mcp_servers: Option<Vec<Value>>,
    pub context_management: Option<Value>,
    pub output_config: Option<Value>,
    pub output_format: Option<Value>,
}

impl MessagesRequest {
    /// Whether reasoning is turned on.
    pub fn asks_to_think(&self) -> bool {
        self.thinking.as_ref().is_some_and(Thinking::is_on)
    }

    /// Refuses a request without `max_tokens`.
    pub fn check_length(&self) -> Result<(), Error> {
        match self.max_tokens {
            Some(_) => Ok(()),
            None => {
                let reason = format!("{MISSING} `max_tokens`");
                Err(Error::WrongType { param: Some("max_tokens".to_owned()), reason })
            }
        }
    }

    /// The same request as a chat completion.
    pub fn into_chat(self) -> Result<ChatRequest, Error> {
        self.refuse_unsupported()?;
        self.thinking.as_ref().map_or(Ok(()), |thinking| thinking.check(self.max_tokens))?;
        let mut messages = Vec::new();
        if let Some(system) = self.system {
            messages.push(Message::new("system", system.into_text("system")?, "system"));
        }
        for (number, message) in self.messages.into_iter().enumerate() {
            message.push_to(&mut messages, number)?;
        }
        let parallel = self.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
        Ok(ChatRequest {
            messages,
            tools: self.tools.map(|tools| tools.into_iter().map(Tool::into_function).collect()),
            tool_choice: self.tool_choice.map(ToolChoice::into_chat).transpose()?,
            parallel_tool_calls: parallel.map(|is_disabled| !is_disabled),
            chat_template_kwargs: self.thinking.map(Thinking::into_template_kwargs),
            max_tokens: self.max_tokens,
            stop: self.stop_sequences.map(Stop::Many),
            stream: self.stream,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            ..ChatRequest::default()
        })
    }

    fn refuse_unsupported(&self) -> Result<(), Error> {
        let is_given = |value: &Option<Value>| value.is_some();
        let has_any = |values: &Option<Vec<Value>>| values.as_ref().is_some_and(|values| !values.is_empty());
        let refused = [
            ("tools", self.tools.iter().flatten().any(Tool::is_run_by_anthropic)),
            ("container", is_given(&self.container)),
            ("mcp_servers", has_any(&self.mcp_servers)),
            ("context_management", is_given(&self.context_management)),
            ("output_config", is_given(&self.output_config)),
            ("output_format", is_given(&self.output_format)),
        ];
        match refused.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(Error::NotSupported(name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_become_those_of_chat_completions() {
        let schema = json!({"type": "object", "properties": {}});
        let body = json!({
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 1,
            "tools": [{"name": "f", "description": "d", "input_schema": schema}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
        });
        let chat = serde_json::from_value::<MessagesRequest>(body).unwrap().into_chat().unwrap();
        let function = json!({"name": "f", "description": "d", "parameters": schema});
        assert_eq!(json!(chat.tools), json!([{"type": "function", "function": function}]));
        assert_eq!(chat.tool_choice, Some(json!({"type": "function", "function": {"name": "f"}})));
        assert_eq!(chat.parallel_tool_calls, Some(false));
    }
}
