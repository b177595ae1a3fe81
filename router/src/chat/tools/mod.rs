//! The tools of a chat request: what the model may call, whether it must, and how many at once.

mod choice;
mod custom;
mod function;

use std::sync::Arc;

use serde_json::{Map, Value};

use self::choice::Choice;
pub use self::custom::{INPUT, arguments_of};
use self::function::Reader;
pub use self::function::{CustomInput, Function};
use crate::base::dialect::Dialect;
use crate::base::error::Error;

const MAX_TOOLS: usize = 128;
/// Put before the descriptions if the chat template does not show tools itself.
const DEFAULT_PROMPT: &str = "You may call one of these functions. To do so, answer with nothing but JSON: \
    {\"name\": the function's name, \"parameters\": an object with its arguments}. Otherwise answer in plain text.";

/// The functions that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// The tools in the form that the model sees.
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

impl Tools {
    /// Checks the fields of a request; `None` if nothing may be called. Errors name fields as in the client's dialect.
    pub fn from_fields(fields: ToolFields, dialect: Dialect) -> Result<Option<Self>, Error> {
        let choice = fields.tool_choice.filter(|given| !given.is_null());
        let choice = choice.map_or(Ok(Choice::Auto), |given| Choice::read(&given))?;
        let tools = fields.tools.unwrap_or_default();
        if tools.len() > MAX_TOOLS {
            let message = format!("`tools` may have at most {MAX_TOOLS} entries. Given: {}", tools.len());
            return Err(Error::invalid("tools", message));
        }
        let read = |(number, tool)| Reader { number, dialect }.tool(tool);
        let read = tools.into_iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        let (functions, described) = read.into_iter().unzip();
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
                self.check_known(&name)?;
                self.functions.retain(|function| function.name == name);
                self.functions.truncate(1);
                (self.is_required, self.is_parallel) = (true, false);
            }
            Choice::Allowed { names, is_required } => self.allow(&names, is_required)?,
        }
        Ok(Some(self))
    }

    /// Forbids all tools but these. Where a call is required, a grammar holds it to them and the model may see the
    /// others, so that the prompt stays the same; else the model sees only these.
    fn allow(&mut self, names: &[String], is_required: bool) -> Result<(), Error> {
        names.iter().try_for_each(|name| self.check_known(name))?;
        let is_allowed = |function: &Function| names.contains(&function.name);
        if !is_required {
            let mut seen = self.functions.iter().map(is_allowed);
            self.described.retain(|_| seen.next().unwrap_or(false));
        }
        self.functions.retain(is_allowed);
        self.is_required = is_required;
        Ok(())
    }

    fn check_known(&self, name: &str) -> Result<(), Error> {
        if self.functions.iter().any(|function| function.name == name) {
            return Ok(());
        }
        let name: String = name.chars().take(100).collect();
        let message = format!("`tool_choice` must name one of the `tools`. Given: {name:?}");
        Err(Error::invalid("tool_choice", message))
    }

    /// The functions that may be called.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Names of the custom tools that may be called.
    pub fn custom_names(&self) -> Arc<[String]> {
        let custom = self.functions.iter().filter(|function| function.custom.is_some());
        custom.map(|function| function.name.clone()).collect()
    }

    /// The tools for the chat template: functions as the client described them.
    pub fn described(&self) -> Value {
        Value::Array(self.described.clone())
    }

    /// All tools after a prompt, for models whose chat template does not show tools.
    pub fn as_text(&self) -> String {
        let prompt = self.prompt.as_deref().unwrap_or(DEFAULT_PROMPT);
        self.described.iter().fold(prompt.to_owned(), |text, tool| format!("{text}\n{tool}"))
    }
}

#[cfg(test)]
mod tests;
