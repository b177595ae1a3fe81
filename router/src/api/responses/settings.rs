//! The fields of a request that its response repeats: as the specification writes them, with every field.

use serde_json::{Map, Value, json};

use super::request::ResponsesRequest;
use super::response::{ReasoningSettings, Settings, TextSettings};

impl ResponsesRequest {
    /// The fields of the request that the response repeats.
    pub fn settings(&self) -> Settings {
        Settings {
            instructions: self.instructions.clone(),
            max_output_tokens: self.max_output_tokens,
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            top_logprobs: self.top_logprobs.unwrap_or(0),
            text: self.text_settings(),
            reasoning: self.reasoning_settings(),
            metadata: self.metadata.clone().unwrap_or_default(),
            tools: self.tools.iter().flatten().map(whole_tool).collect(),
            tool_choice: self.tool_choice.as_ref().map_or_else(|| "auto".into(), flat_choice),
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            max_tool_calls: self.max_tool_calls,
            truncation: self.truncation.unwrap_or_default(),
            user: self.user.clone(),
            safety_identifier: self.safety_identifier.clone(),
            prompt_cache_key: self.prompt_cache_key.clone(),
        }
    }

    fn text_settings(&self) -> TextSettings {
        let given = self.text.as_ref();
        let format = given.and_then(|text| text.format.clone()).filter(Value::is_object);
        let verbosity = given.and_then(|text| text.verbosity.clone());
        TextSettings {
            format: format.unwrap_or_else(|| json!({ "type": "text" })),
            verbosity: verbosity.unwrap_or_else(|| "medium".to_owned()),
        }
    }

    fn reasoning_settings(&self) -> ReasoningSettings {
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone());
        ReasoningSettings { effort, summary: None }
    }
}

/// A tool with all its fields: null where the request has none.
fn whole_tool(tool: &Map<String, Value>) -> Value {
    let mut tool = tool.clone();
    tool.entry("description").or_insert(Value::Null);
    if tool.get("type").is_some_and(|kind| kind == "custom") {
        tool.entry("format").or_insert_with(|| json!({ "type": "text" }));
    } else {
        tool.entry("parameters").or_insert(Value::Null);
        let strict = tool.entry("strict").or_insert(Value::Null);
        if strict.is_null() {
            *strict = false.into();
        }
    }
    tool.into()
}

/// `tool_choice` in the form of responses, also where the request has that of chat completions or only a name.
fn flat_choice(choice: &Value) -> Value {
    let named = |kind: &str, name: &Value| json!({ "type": kind, "name": name });
    match choice.as_str() {
        Some("auto" | "none" | "required") => choice.clone(),
        Some("any") => "required".into(),
        Some(_) => named("function", choice),
        None if choice.is_null() => "auto".into(),
        None if !choice["function"]["name"].is_null() => named("function", &choice["function"]["name"]),
        None if !choice["custom"]["name"].is_null() => named("custom", &choice["custom"]["name"]),
        None => choice.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(fields: Value) -> Value {
        let mut body = json!({"input": "hi"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!(serde_json::from_value::<ResponsesRequest>(body).unwrap().settings())
    }

    #[test]
    fn every_setting_is_repeated_whole() {
        let found = settings(json!({
            "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}],
            "tool_choice": "f", "truncation": "auto", "max_tool_calls": 2, "user": "u", "safety_identifier": "s",
            "prompt_cache_key": "k", "frequency_penalty": 0.5, "reasoning": {"effort": "low"}, "text": {"verbosity": "high"},
        }));
        let function = json!({"type": "function", "name": "f", "description": null, "parameters": null, "strict": false});
        let custom = json!({"type": "custom", "name": "c", "description": null, "format": {"type": "text"}});
        assert_eq!(found["tools"], json!([function, custom]));
        assert_eq!(found["tool_choice"], json!({"type": "function", "name": "f"}));
        assert_eq!(found["text"], json!({"format": {"type": "text"}, "verbosity": "high"}));
        assert_eq!(found["reasoning"], json!({"effort": "low", "summary": null}));
        for (field, value) in [
            ("truncation", json!("auto")),
            ("max_tool_calls", json!(2)),
            ("user", json!("u")),
            ("safety_identifier", json!("s")),
            ("prompt_cache_key", json!("k")),
            ("frequency_penalty", json!(0.5)),
            ("presence_penalty", json!(0.0)),
        ] {
            assert_eq!(found[field], value, "{field}");
        }
        let defaults = settings(json!({"tool_choice": null, "text": {"format": null}}));
        assert_eq!((&defaults["tool_choice"], &defaults["truncation"]), (&json!("auto"), &json!("disabled")));
        assert_eq!(defaults["text"], json!({"format": {"type": "text"}, "verbosity": "medium"}));
    }
}
