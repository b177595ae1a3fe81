//! One tool as a client describes it: a function with a name and the schema of its arguments, checked field by field.
//! Custom tools are in `custom`.

use serde_json::{Map, Value};

use crate::base::dialect::Dialect;
use crate::base::error::Error;

const MAX_NAME_LEN: usize = 128;

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// The JSON schema of its arguments, which are an object; `None` if it takes none.
    pub parameters: Option<Value>,
    /// Path of that schema in the request.
    pub path: String,
    /// Whether the arguments must match the schema.
    pub is_strict: bool,
    /// The input that a custom tool accepts; `None` for other tools.
    pub custom: Option<CustomInput>,
}

/// The input that a custom tool accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CustomInput {
    /// Any text.
    Text,
    /// Text that this Lark grammar allows. The grammar describes the inside of a JSON string.
    Grammar(String),
}

/// Reads one tool.
pub(super) struct Reader {
    /// The index of the tool.
    pub number: usize,
    pub dialect: Dialect,
}

impl Reader {
    /// The function of a tool, and its description for the template.
    pub fn tool(&self, tool: Map<String, Value>) -> Result<(Function, Value), Error> {
        match tool.get("type") {
            Some(Value::String(kind)) if kind == "custom" => self.custom(&tool),
            None => Ok((self.function(&tool)?, tool.into())),
            Some(Value::String(kind)) if kind == "function" => Ok((self.function(&tool)?, tool.into())),
            Some(other) => {
                let why = format!("must be \"function\" or \"custom\". Given: {}", shown(other));
                Err(refusal(format!("tools[{}].type", self.number), &why))
            }
        }
    }

    fn function(&self, tool: &Map<String, Value>) -> Result<Function, Error> {
        let described = tool
            .get("function")
            .and_then(Value::as_object)
            .ok_or_else(|| refusal(format!("tools[{}].function", self.number), "must be an object"))?;
        let description = described.get("description").unwrap_or(&Value::Null);
        if !description.is_null() && !description.is_string() {
            let why = format!("must be a string. Given: {}", shown(description));
            return Err(self.refusal("description", &why));
        }
        Ok(Function {
            name: self.name_in(described, self.dialect.tool(self.number, "name"))?,
            parameters: self.parameters(described)?,
            path: self.dialect.tool_parameters(self.number),
            is_strict: self.strict(described)?,
            custom: None,
        })
    }

    /// The name of a tool; `path` says where it is.
    pub fn name_in(&self, described: &Map<String, Value>, path: String) -> Result<String, Error> {
        let name = described.get("name").and_then(Value::as_str).unwrap_or_default();
        if is_name(name) {
            return Ok(name.to_owned());
        }
        let shown: String = name.chars().take(MAX_NAME_LEN).collect();
        let why =
            format!("must have 1 to {MAX_NAME_LEN} letters, digits or any of `_-.:/`. Given: {shown:?}");
        Err(refusal(path, &why))
    }

    /// The schema of the arguments. Arguments are always an object, so a schema without a `type` gets the type
    /// "object".
    fn parameters(&self, described: &Map<String, Value>) -> Result<Option<Value>, Error> {
        let given = ["parameters", "arguments"].into_iter().filter_map(|field| described.get(field));
        let Some(schema) = given.into_iter().find(|schema| !schema.is_null()) else { return Ok(None) };
        let refuse = |given: &Value| {
            let path = self.dialect.tool_parameters(self.number);
            let why = "must be the JSON schema of an object (`\"type\": \"object\"`)";
            Err(refusal(path, &format!("{why}. Given: {}", shown(given))))
        };
        let Value::Object(fields) = schema else { return refuse(schema) };
        let is_object = match fields.get("type") {
            None => true,
            Some(Value::Array(types)) => types.iter().any(|kind| kind == "object"),
            Some(kind) => kind == "object",
        };
        if !is_object {
            return refuse(&fields["type"]);
        }
        let mut fields = fields.clone();
        fields.insert("type".to_owned(), "object".into());
        Ok(Some(Value::Object(fields)))
    }

    fn strict(&self, described: &Map<String, Value>) -> Result<bool, Error> {
        match described.get("strict") {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(strict)) => Ok(*strict),
            Some(other) => {
                Err(self.refusal("strict", &format!("must be true or false. Given: {}", shown(other))))
            }
        }
    }

    fn refusal(&self, field: &str, why: &str) -> Error {
        refusal(self.dialect.tool(self.number, field), why)
    }
}

pub(super) fn refusal(path: String, why: &str) -> Error {
    let message = format!("`{path}` {why}");
    Error::invalid(path, message)
}

/// A value for a message, cut after 60 characters.
pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.chars().all(is_allowed)
}
