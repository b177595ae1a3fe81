//! The body of `/v1/messages`, which is translated into a [`ChatRequest`]. Fields of the specification that are not
//! supported are refused by name.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::content::{Content, InputMessage};
use super::options::{ContextManagement, OutputConfig};
use super::tools::{Thinking, Tool, ToolChoice};
use crate::api::known_fields::{HasKnownFields, On, is_neutral};
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
    pub context_management: Option<ContextManagement>,
    pub output_config: Option<OutputConfig>,
    pub output_format: Option<Value>,
}

impl HasKnownFields for MessagesRequest {
    const ON: On = On::Messages;
}

impl MessagesRequest {
    /// Leaves `thinking` out if the model does not reason; whether it did. It is still checked.
    pub fn ignore_thinking(&mut self) -> Result<bool, Error> {
        let Some(thinking) = self.thinking.take_if(|thinking| thinking.is_on()) else { return Ok(false) };
        thinking.check(self.max_tokens).map(|()| true)
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

    /// Translates the request into a chat completion.
    pub fn into_chat(self) -> Result<ChatRequest, Error> {
        self.refuse_unsupported()?;
        self.context_management.as_ref().map_or(Ok(()), ContextManagement::check)?;
        self.thinking.as_ref().map_or(Ok(()), |thinking| thinking.check(self.max_tokens))?;
        let mut messages = Vec::new();
        if let Some(system) = self.system {
            messages.push(Message::new("system", system.into_text("system")?, "system"));
        }
        for (number, message) in self.messages.into_iter().enumerate() {
            message.push_to(&mut messages, number)?;
        }
        let output = self.output_config.map(|config| (config.effort, config.format));
        let (effort, format) = output.unwrap_or_default();
        let parallel = self.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
        Ok(ChatRequest {
            messages,
            tools: self.tools.map(|tools| tools.into_iter().map(Tool::into_function).collect()),
            tool_choice: self.tool_choice.map(ToolChoice::into_chat).transpose()?,
            parallel_tool_calls: parallel.map(|is_disabled| !is_disabled),
            chat_template_kwargs: self.thinking.map(Thinking::into_template_kwargs),
            reasoning_effort: effort.map(|effort| effort.name().to_owned()),
            response_format: format,
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
        let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !is_neutral(value, &[]));
        let has_any = |values: &Option<Vec<Value>>| values.as_ref().is_some_and(|values| !values.is_empty());
        let refused = [
            ("tools", self.tools.iter().flatten().any(Tool::is_run_by_anthropic)),
            ("container", is_given(&self.container)),
            ("mcp_servers", has_any(&self.mcp_servers)),
            (
                "output_config.task_budget",
                self.output_config.as_ref().is_some_and(|config| is_given(&config.task_budget)),
            ),
            ("output_format", is_given(&self.output_format)),
        ];
        match refused.into_iter().find(|(_, is_given)| *is_given) {
            Some((param @ "output_format", _)) => {
                Err(Error::SendInstead { param, instead: "send `output_config.format`" })
            }
            Some((name, _)) => Err(Error::NotSupported(name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chat(fields: Value) -> Result<ChatRequest, Error> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value::<MessagesRequest>(body).unwrap().into_chat()
    }

    #[test]
    fn effort_and_format_become_those_of_chat_completions() {
        let format = json!({"type": "json_schema", "schema": {"type": "object"}});
        let config = json!({"effort": "xhigh", "format": format});
        let chat = chat(json!({"output_config": config})).unwrap();
        assert_eq!(chat.reasoning_effort.as_deref(), Some("xhigh"));
        assert_eq!(chat.response_format, Some(format));
    }

    #[test]
    fn edits_of_the_context_that_are_not_made_are_refused() {
        for accepted in [
            json!({}),
            json!({"edits": []}),
            json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
        ] {
            assert!(chat(json!({"context_management": accepted})).is_ok());
        }
        let clear =
            json!({"edits": [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}]});
        let refused = chat(json!({"context_management": clear})).err();
        assert_eq!(refused, Some(Error::NotSupported("context_management.edits")));
        let budget = json!({"output_config": {"task_budget": {"type": "tokens", "total": 9}}});
        assert_eq!(chat(budget).err(), Some(Error::NotSupported("output_config.task_budget")));
    }

    #[test]
    fn tools_become_those_of_chat_completions() {
        let schema = json!({"type": "object", "properties": {}});
        let body = json!({
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 1,
            "tools": [{"name": "f", "description": "d", "input_schema": schema, "strict": true}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
        });
        let chat = serde_json::from_value::<MessagesRequest>(body).unwrap().into_chat().unwrap();
        let function = json!({"name": "f", "description": "d", "parameters": schema, "strict": true});
        assert_eq!(json!(chat.tools), json!([{"type": "function", "function": function}]));
        assert_eq!(chat.tool_choice, Some(json!({"type": "function", "function": {"name": "f"}})));
        assert_eq!(chat.parallel_tool_calls, Some(false));
    }
}
