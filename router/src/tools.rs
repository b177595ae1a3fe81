//! The tools of a chat request: functions that the model may call, whether it must, and how many at once.

use serde_json::{Map, Value};

use crate::error::Error;

const MAX_TOOLS: usize = 128;
const MAX_NAME_LEN: usize = 128;
/// Put before the descriptions if the chat template does not show tools itself.
const DEFAULT_PROMPT: &str = "You may call one of these functions. To do so, answer with nothing but JSON: \
    {\"name\": the function's name, \"parameters\": an object with its arguments}. Otherwise answer in plain text.";

/// What may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// As the client described them.
    described: Vec<Value>,
    functions: Vec<Function>,
    /// Whether the reply must be calls.
    pub is_required: bool,
    /// Whether there may be several calls.
    pub is_parallel: bool,
    /// What to tell models whose chat template does not show tools.
    prompt: Option<String>,
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments; `None` if it takes none.
    pub parameters: Option<Value>,
    /// Whether the arguments must obey it.
    pub is_strict: bool,
}

/// What a request says of tools.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct ToolFields {
    pub tools: Option<Vec<Map<String, Value>>>,
    pub tool_choice: Option<Value>,
    pub parallel_tool_calls: Option<bool>,
    pub tool_prompt: Option<String>,
}

/// Which of the functions.
enum Choice {
    Auto,
    None,
    Required,
    Named(String),
}

impl Tools {
    /// What a request says; `None` if nothing may be called.
    pub fn from_fields(fields: ToolFields) -> Result<Option<Self>, Error> {
        let choice = choice(fields.tool_choice.as_ref())?;
        let tools = fields.tools.unwrap_or_default();
        if tools.len() > MAX_TOOLS {
            let message = format!("`tools` may have at most {MAX_TOOLS} entries. Given: {}", tools.len());
            return Err(Error::invalid("tools", message));
        }
        let functions: Vec<Function> = tools
            .iter()
            .enumerate()
            .map(|(number, tool)| function(number, tool))
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

    /// What may be called.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// For the chat template.
    pub fn described(&self) -> Value {
        Value::Array(self.described.clone())
    }

    /// For models whose chat template does not show tools.
    pub fn as_text(&self) -> String {
        let prompt = self.prompt.as_deref().unwrap_or(DEFAULT_PROMPT);
        self.described.iter().fold(prompt.to_owned(), |text, tool| format!("{text}\n{tool}"))
    }
}

fn function(number: usize, tool: &Map<String, Value>) -> Result<Function, Error> {
    let refuse = |what: String| Err(Error::invalid("tools", format!("`tools[{number}]{what}")));
    match tool.get("type") {
        None => {}
        Some(Value::String(kind)) if kind == "function" => {}
        Some(other) => return refuse(format!(".type` must be \"function\". Given: {other}")),
    }
    let Some(described) = tool.get("function").filter(|described| described.is_object()) else {
        return refuse(".function` must be an object".to_owned());
    };
    let name = described["name"].as_str().unwrap_or_default();
    if !is_name(name) {
        let shown: String = name.chars().take(MAX_NAME_LEN).collect();
        return refuse(format!(
            ".function.name` must have 1 to {MAX_NAME_LEN} letters, digits or any of `_-.:/`. Given: {shown:?}"
        ));
    }
    let parameters = [&described["parameters"], &described["arguments"]];
    let parameters = parameters.into_iter().find(|schema| !schema.is_null());
    if parameters.is_some_and(|schema| !schema.is_object() && !schema.is_boolean()) {
        return refuse(".function.parameters` must be a JSON schema".to_owned());
    }
    Ok(Function {
        name: name.to_owned(),
        parameters: parameters.cloned(),
        is_strict: described["strict"].as_bool().unwrap_or(false),
    })
}

fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.chars().all(is_allowed)
}

/// OpenAI's words and objects; any other word is a function's name, as TGI has it.
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
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(tools: Value, choice: Value) -> Result<Option<Tools>, Error> {
        let tools = serde_json::from_value(tools).unwrap();
        Tools::from_fields(ToolFields { tools, tool_choice: Some(choice), ..ToolFields::default() })
    }

    fn two() -> Value {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {}}});
        json!([tool("a"), tool("b")])
    }

    fn names(choice: Value) -> Option<(Vec<String>, bool, bool)> {
        parse(two(), choice).unwrap().map(|tools| {
            let names = tools.functions.iter().map(|function| function.name.clone()).collect();
            (names, tools.is_required, tools.is_parallel)
        })
    }

    #[test]
    fn the_choice_says_what_may_be_called_and_what_must() {
        let both = || vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(names(json!("auto")), Some((both(), false, true)));
        assert_eq!(names(Value::Null), Some((both(), false, true)));
        assert_eq!(names(json!("none")), None);
        assert_eq!(names(json!("required")), Some((both(), true, true)));
        for named in [
            json!("b"),
            json!({"type": "function", "function": {"name": "b"}}),
            json!({"function": {"name": "b"}}),
            json!({"type": "function", "name": "b"}),
        ] {
            assert_eq!(names(named), Some((vec!["b".to_owned()], true, false)));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_place() {
        for (tools, choice, param, place) in [
            (json!([{"type": "web_search"}]), json!("auto"), "tools", "`tools[0].type`"),
            (json!([{"type": "function"}]), json!("auto"), "tools", "`tools[0].function`"),
            (json!([{"function": {"name": "a b"}}]), json!("auto"), "tools", "\"a b\""),
            (json!([{"function": {"name": "a", "parameters": 1}}]), json!("auto"), "tools", "parameters`"),
            (two(), json!("c"), "tool_choice", "\"c\""),
            (two(), json!({"type": "allowed_tools"}), "tool_choice", "must be"),
            (json!([]), json!("required"), "tool_choice", "no `tools`"),
            (Value::Array(vec![two()[0].clone(); 129]), json!("auto"), "tools", "Given: 129"),
        ] {
            let error = parse(tools, choice).unwrap_err();
            assert_eq!(error.param(), Some(param));
            assert!(error.to_string().contains(place), "{error}");
        }
    }
}
