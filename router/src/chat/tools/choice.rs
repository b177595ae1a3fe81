//! `tool_choice`: which tools may be called, and whether one must be.

use serde_json::Value;

use crate::base::error::Error;

/// Which tools may be called, and whether one must be.
pub(super) enum Choice {
    Auto,
    None,
    Required,
    Named(String),
    /// Only these of the tools.
    Allowed {
        names: Vec<String>,
        is_required: bool,
    },
}

impl Choice {
    /// Reads OpenAI's keywords and objects; any other string is a function's name, as in TGI.
    pub fn read(given: &Value) -> Result<Self, Error> {
        match given.as_str() {
            Some("auto") => return Ok(Self::Auto),
            Some("none") => return Ok(Self::None),
            Some("required" | "any") => return Ok(Self::Required),
            Some(name) => return Ok(Self::Named(name.to_owned())),
            None => {}
        }
        match (given["type"].as_str(), name_of(given)) {
            (Some("allowed_tools"), _) => allowed(given),
            (Some("function" | "custom") | None, Some(name)) => Ok(Self::Named(name.to_owned())),
            _ => {
                let message = "`tool_choice` must be \"auto\", \"none\", \"required\", \
                               {\"type\": \"function\", \"function\": {\"name\": ..}}, \
                               {\"type\": \"custom\", \"custom\": {\"name\": ..}} or \
                               {\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": .., \"tools\": [..]}}";
                Err(Error::invalid("tool_choice", message))
            }
        }
    }
}

/// The name of a tool: in the object of its type, or beside the type, as in responses.
fn name_of(tool: &Value) -> Option<&str> {
    [&tool["function"]["name"], &tool["custom"]["name"], &tool["name"]].into_iter().find_map(Value::as_str)
}

/// `{"mode", "tools"}`, in an object `allowed_tools` or beside the type, as in responses.
fn allowed(given: &Value) -> Result<Choice, Error> {
    let fields = if given["allowed_tools"].is_object() { &given["allowed_tools"] } else { given };
    let is_required = match fields["mode"].as_str() {
        Some("auto") => false,
        Some("required") => true,
        _ => return refuse("mode", "must be \"auto\" or \"required\""),
    };
    let names = fields["tools"].as_array().filter(|tools| !tools.is_empty());
    let names = names.and_then(|tools| tools.iter().map(|tool| name_of(tool).map(str::to_owned)).collect());
    match names {
        Some(names) => Ok(Choice::Allowed { names, is_required }),
        None => refuse("tools", "must be a list of tools, each with its name, that is not empty"),
    }
}

fn refuse(field: &str, why: &str) -> Result<Choice, Error> {
    Err(Error::invalid("tool_choice", format!("`tool_choice.allowed_tools.{field}` {why}")))
}
