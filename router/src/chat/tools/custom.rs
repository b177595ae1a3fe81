//! Custom tools: the model calls them with a text, free or of a grammar. To the model such a tool is a function with one
//! text argument, `input`, which chat templates can show and which models were trained to call.

use serde_json::{Map, Value, json};

use super::function::{CustomInput, Function, Reader, refusal, shown};
use crate::base::error::Error;
use crate::grammar::{quoted_lark, quoted_regex};

/// The argument that holds the input.
pub const INPUT: &str = "input";

/// The grammar that a client gave for an input.
struct Given<'a> {
    syntax: &'a str,
    definition: &'a str,
}

impl Reader {
    /// Reads a custom tool, as the function that the model sees, and as the function's description for the template.
    pub(super) fn custom(&self, tool: &Map<String, Value>) -> Result<(Function, Value), Error> {
        let described = tool.get("custom").and_then(Value::as_object);
        let path = format!("tools[{}].custom", self.number);
        let described = described.ok_or_else(|| refusal(path, "must be an object"))?;
        let description = self.custom_description(described)?;
        let given = self.format(described.get("format").unwrap_or(&Value::Null))?;
        let parameters = json!({
            "type": "object",
            "properties": { INPUT: { "type": "string" } },
            "required": [INPUT],
            "additionalProperties": false,
        });
        let function = Function {
            name: self.custom_name(described)?,
            parameters: Some(parameters.clone()),
            path: self.format_path(),
            is_strict: given.is_some(),
            custom: Some(given.as_ref().map_or(Ok(CustomInput::Text), |given| self.grammar(given))?),
        };
        let description = description_for_model(description, given.as_ref());
        let shown = json!({ "name": function.name, "description": description, "parameters": parameters });
        Ok((function, json!({ "type": "function", "function": shown })))
    }

    fn custom_name(&self, described: &Map<String, Value>) -> Result<String, Error> {
        self.name_in(described, self.dialect.custom_tool(self.number, "name"))
    }

    fn custom_description<'a>(&self, described: &'a Map<String, Value>) -> Result<Option<&'a str>, Error> {
        match described.get("description") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => {
                let why = format!("must be a string. Given: {}", shown(other));
                Err(refusal(self.dialect.custom_tool(self.number, "description"), &why))
            }
        }
    }

    fn format_path(&self) -> String {
        self.dialect.custom_tool(self.number, "format")
    }

    /// `{"type": "text"}`, or `{"type": "grammar"}` with syntax and definition, in an object `grammar` or beside the
    /// type, as in responses.
    fn format<'a>(&self, format: &'a Value) -> Result<Option<Given<'a>>, Error> {
        let refuse = |why: &str| Err(refusal(self.format_path(), why));
        match format["type"].as_str() {
            None if format.is_null() => return Ok(None),
            Some("text") => return Ok(None),
            Some("grammar") => {}
            _ => return refuse("must have the `type` \"text\" or \"grammar\""),
        }
        let grammar = if format["grammar"].is_object() { &format["grammar"] } else { format };
        match (grammar["syntax"].as_str(), grammar["definition"].as_str()) {
            (Some(syntax @ ("lark" | "regex")), Some(definition)) => Ok(Some(Given { syntax, definition })),
            _ => refuse("must have a `syntax`, \"lark\" or \"regex\", and a `definition`"),
        }
    }

    fn grammar(&self, given: &Given<'_>) -> Result<CustomInput, Error> {
        let quoted = match given.syntax {
            "regex" => quoted_regex(given.definition),
            _ => quoted_lark(given.definition),
        };
        let refuse = |reason| Error::Grammar { param: self.format_path().into(), reason };
        quoted.map(CustomInput::Grammar).map_err(refuse)
    }
}

fn description_for_model(description: Option<&str>, given: Option<&Given<'_>>) -> String {
    let mut text = description.unwrap_or_default().to_owned();
    if let Some(Given { syntax, definition }) = given {
        let break_before = if text.is_empty() { "" } else { "\n" };
        text += &format!("{break_before}`{INPUT}` matches this {syntax} grammar:\n{definition}");
    }
    text
}

/// The arguments of the function that stands for a custom tool.
pub fn arguments_of(input: &str) -> Value {
    json!({ INPUT: input })
}
