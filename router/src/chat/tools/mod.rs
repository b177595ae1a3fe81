//! The tools of a chat request: functions that the model may call, whether it must, and how many at once.

mod function;

use serde_json::{Map, Value};

pub use self::function::Function;
use crate::base::dialect::Dialect;
use crate::base::error::Error;

const MAX_TOOLS: usize = 128;
/// Put before the descriptions if the chat template does not show tools itself.
const DEFAULT_PROMPT: &str = "You may call one of these functions. To do so, answer with nothing but JSON: \
    {\"name\": the function's name, \"parameters\": an object with its arguments}. Otherwise answer in plain text.";

/// The functions that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// As the client described them.
    described: Vec<Value>,
    functions: Vec<Function>,
    /// Whether the reply must be calls.
    pub is_required: bool,
    /// Whether there may be several calls.
    pub is_parallel: bool,
    /// The prompt for models whose chat template does not show tools, instead of [`DEFAULT_PROMPT`].
    prompt: Option<String>,
}

/// The fields of a request about tools.
#[derive(Debug, Clone, Default)]
pub struct ToolFields {
    pub tools: Option<Vec<Map<String, Value>>>,
    pub tool_choice: Option<Value>,
    pub parallel_tool_calls: Option<bool>,
    pub tool_prompt: Option<String>,
}

/// Which functions may be called, and whether one must be.
enum Choice {
    Auto,
    None,
    Required,
    Named(String),
}

impl Tools {
    /// Checks the fields of a request; `None` if nothing may be called. Errors name fields as in the client's dialect.
    pub fn from_fields(fields: ToolFields, dialect: Dialect) -> Result<Option<Self>, Error> {
        let choice = choice(fields.tool_choice.as_ref())?;
        let tools = fields.tools.unwrap_or_default();
        if tools.len() > MAX_TOOLS {
            let message = format!("`tools` may have at most {MAX_TOOLS} entries. Given: {}", tools.len());
            return Err(Error::invalid("tools", message));
        }
        let functions: Vec<Function> = tools
            .iter()
            .enumerate()
            .map(|(number, tool)| Function::read(tool, number, dialect))
            .collect::<Result<_, _>>()?;
        let described = tools.into_iter().map(Value::Object).collect();
        let all = Self {
            described,
            functions,
            is_required: false,
            is_parallel: fields.parallel_tool_calls.unwrap_or(true),
            prompt: fields.tool_prompt,
        };
        all.chosen(choice)
    }

    fn chosen(mut self, choice: Choice) -> Result<Option<Self>, Error> {
        match choice {
            Choice::None => return Ok(None),
            Choice::Auto if self.functions.is_empty() => return Ok(None),
            Choice::Auto => {}
            Choice::Required if self.functions.is_empty() => {
                return Err(Error::invalid(
                    "tool_choice",
                    "`tool_choice` requires a call, but there are no `tools`",
                ));
            }
            Choice::Required => self.is_required = true,
            Choice::Named(name) => {
                self.functions.retain(|function| function.name == name);
                self.functions.truncate(1);
                if self.functions.is_empty() {
                    let message = format!("`tool_choice` must name one of the `tools`. Given: {name:?}");
                    return Err(Error::invalid("tool_choice", message));
                }
                (self.is_required, self.is_parallel) = (true, false);
            }
        }
        Ok(Some(self))
    }

    /// The functions that may be called.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// All tools as the client described them, for the chat template.
    pub fn described(&self) -> Value {
        Value::Array(self.described.clone())
    }

    /// All tools after a prompt, for models whose chat template does not show tools.
    pub fn as_text(&self) -> String {
        let prompt = self.prompt.as_deref().unwrap_or(DEFAULT_PROMPT);
        self.described.iter().fold(prompt.to_owned(), |text, tool| format!("{text}\n{tool}"))
    }
}

/// Reads `tool_choice`: OpenAI's keywords and objects; any other string is a function's name, as in TGI.
fn choice(given: Option<&Value>) -> Result<Choice, Error> {
    let Some(given) = given.filter(|choice| !choice.is_null()) else { return Ok(Choice::Auto) };
    match given.as_str() {
        Some("auto") => return Ok(Choice::Auto),
        Some("none") => return Ok(Choice::None),
        Some("required" | "any") => return Ok(Choice::Required),
        Some(name) => return Ok(Choice::Named(name.to_owned())),
        None => {}
    }
    let name = given["function"]["name"].as_str().or_else(|| given["name"].as_str());
    match (given["type"].as_str(), name) {
        (Some("function") | None, Some(name)) => Ok(Choice::Named(name.to_owned())),
        _ => {
            let message = "`tool_choice` must be \"auto\", \"none\", \"required\" or \
                           {\"type\": \"function\", \"function\": {\"name\": ..}}";
            Err(Error::invalid("tool_choice", message))
        }
    }
}

#[cfg(test)]
mod tests;
