//! Reads the grammar of a request: TGI's `{"type", "value"}` in `grammar` and in `response_format`, and OpenAI's forms
//! of the latter.

use penstock_scheduler::{Grammar, GrammarKind};
use serde_json::{Value, json};

use super::objects::with_types;
use super::{lark, schema};
use crate::base::error::Error;
use crate::base::json_depth::{MAX_DEPTH, too_deep};

/// Most bytes of a regular expression or of Lark.
pub(super) const MAX_TEXT_BYTES: usize = 32 << 10;
const WHITESPACE: &str = r" |\n[ \t]{0,24}";
const TYPES: &str = "text, json_object, json_schema, json, regex, grammar";

/// Reads TGI's `grammar`; `None` is plain text.
pub fn from_native(value: &Value) -> Result<Option<Grammar>, Error> {
    NATIVE.read(value)
}

/// Reads OpenAI's `response_format`, in TGI's forms, too; `None` is plain text.
pub fn from_response_format(value: &Value) -> Result<Option<Grammar>, Error> {
    Reader { param: "response_format", schema_in: Some("json_schema") }.read(value)
}

/// Reads OpenAI's `text.format` of responses, in which a schema and its name are beside the type; `None` is plain text.
pub fn from_text_format(value: &Value) -> Result<Option<Grammar>, Error> {
    Reader { param: "text.format", schema_in: None }.read(value)
}

/// Reads Anthropic's `output_config.format`, in which a schema is beside the type; `None` is plain text.
pub fn from_output_format(value: &Value) -> Result<Option<Grammar>, Error> {
    Reader { param: "output_config.format", schema_in: None }.read(value)
}

/// Reads Ollama's `format`: `json`, or a JSON schema; `None` is plain text.
pub fn from_ollama_format(value: &Value) -> Result<Option<Grammar>, Error> {
    match value {
        Value::String(text) if text.is_empty() => Ok(None),
        Value::String(text) if text == "json" => Ok(Some(any_object())),
        Value::Object(_) => Ok(Some(json_schema(value.clone()))),
        _ => Err(Error::invalid("format", "`format` must be \"json\" or a JSON schema")),
    }
}

/// Reads a grammar of the gRPC API, whose message has a field for each kind.
pub fn from_text(kind: GrammarKind, text: String) -> Result<Grammar, Error> {
    let value = Value::String(text);
    match kind {
        GrammarKind::JsonSchema => NATIVE.schema("json_schema", &value),
        GrammarKind::Regex => NATIVE.text("regex", kind, &value),
        GrammarKind::Lark => NATIVE.text("lark", kind, &value),
    }
}

pub(super) struct Reader {
    pub(super) param: &'static str,
    /// The field with the schema and the name of a `json_schema`; `None` if they are beside the type.
    pub(super) schema_in: Option<&'static str>,
}

const NATIVE: Reader = Reader { param: "grammar", schema_in: Some("value") };

impl Reader {
    fn read(&self, given: &Value) -> Result<Option<Grammar>, Error> {
        let Some(kind) = given["type"].as_str() else {
            return self.refuse(format!("`{}.type` must be one of {TYPES}", self.param));
        };
        let value = &given["value"];
        match kind {
            "text" => Ok(None),
            // llama.cpp puts a schema beside the type.
            "json_object" if value.is_null() && !given["schema"].is_null() => {
                self.schema("schema", &given["schema"]).map(Some)
            }
            "json_object" | "json" if value.is_null() => Ok(Some(any_object())),
            "json_object" | "json" => self.schema("value", value).map(Some),
            "json_schema" => self.json_schema(given).map(Some),
            "regex" => self.text("value", GrammarKind::Regex, value).map(Some),
            "grammar" => self.text("value", GrammarKind::Lark, value).map(Some),
            other => {
                let other: String = other.chars().take(50).collect();
                self.refuse(format!("`{}.type` must be one of {TYPES}. Given: {other:?}", self.param))
            }
        }
    }

    /// `{"json_schema": {"name", "schema", "strict"}}`, TGI's `{"value": {"name", "schema"}}`, or the schema beside the type
    /// as llama.cpp and SGLang have it.
    fn json_schema(&self, given: &Value) -> Result<Grammar, Error> {
        let Some(usual) = self.schema_in else { return self.schema_or_any("schema", &given["schema"]) };
        let fields = [usual, "json_schema", "value"];
        let name = fields.into_iter().find(|field| !given[*field].is_null()).unwrap_or(usual);
        match &given[name] {
            Value::Null if !given["schema"].is_null() => self.schema("schema", &given["schema"]),
            Value::Object(_) => self.schema_or_any(&format!("{name}.schema"), &given[name]["schema"]),
            _ => self.refuse(format!("`{}.{name}` must be an object with a `schema`", self.param)),
        }
    }

    /// Without a schema, any object is allowed.
    fn schema_or_any(&self, path: &str, schema: &Value) -> Result<Grammar, Error> {
        match schema {
            Value::Null => Ok(any_object()),
            schema => self.schema(path, schema),
        }
    }

    /// Reads a schema, or the text of one.
    pub(super) fn schema(&self, path: &str, schema: &Value) -> Result<Grammar, Error> {
        if let Some(depth) = schema.as_str().and_then(|text| too_deep(text.as_bytes())) {
            let path = self.path(path);
            return self
                .refuse(format!("{path} may be nested at most {MAX_DEPTH} levels deep. Given: {depth}"));
        }
        let parsed = match schema {
            Value::String(text) => serde_json::from_str(text).ok(),
            other => Some(other.clone()),
        };
        match parsed {
            Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(json_schema(schema)),
            _ => self.refuse(format!("{} must be a JSON schema", self.path(path))),
        }
    }

    pub(super) fn text(&self, path: &str, kind: GrammarKind, value: &Value) -> Result<Grammar, Error> {
        let path = self.path(path);
        match value.as_str() {
            Some(text) if text.len() > MAX_TEXT_BYTES => {
                let given = text.len();
                self.refuse(format!("{path} may have at most {MAX_TEXT_BYTES} bytes. Given: {given}"))
            }
            // The cost of an embedded grammar would not be checked.
            Some(text) if kind == GrammarKind::Lark && lark::has_directive(text) => {
                self.refuse(format!("{path} may hold no directives (`%json`, `%ignore` ..)"))
            }
            Some(text) if kind == GrammarKind::Lark && !text.is_empty() => {
                match lark::check_operators(text) {
                    Ok(()) => Ok(Grammar { kind, text: text.to_owned() }),
                    Err(reason) => self.refuse(format!("{path} cannot be used: {reason}")),
                }
            }
            Some(text) if !text.is_empty() => Ok(Grammar { kind, text: text.to_owned() }),
            _ => self.refuse(format!("{path} must be a string that is not empty")),
        }
    }

    /// The whole path of a `path` inside the field; an empty one is the field itself.
    pub(super) fn path(&self, path: &str) -> String {
        if path.is_empty() { format!("`{}`", self.param) } else { format!("`{}.{path}`", self.param) }
    }

    pub(super) fn refuse<T>(&self, message: String) -> Result<T, Error> {
        Err(Error::invalid(self.param, message))
    }
}

pub(super) fn any_object() -> Grammar {
    json_schema(json!({ "type": "object" }))
}

/// llguidance's settings inside a schema, instead of a client's, which could turn checks off. They allow any layout,
/// but not endless whitespace, which small models would write.
fn settings() -> Value {
    json!({ "whitespace_pattern": WHITESPACE })
}

fn json_schema(schema: Value) -> Grammar {
    let schema = with_settings(with_types(schema));
    Grammar { kind: GrammarKind::JsonSchema, text: schema.to_string() }
}

/// A schema with the router's settings.
pub(super) fn with_settings(mut schema: Value) -> Value {
    if let Value::Object(fields) = &mut schema {
        fields.insert("x-guidance".to_owned(), settings());
    }
    schema
}

/// The text of a schema for use inside another grammar; fails if the schema costs too much.
pub(crate) fn schema_text(schema: &Value) -> Result<String, String> {
    schema::check_size(schema)?;
    Ok(with_settings(with_types(schema.clone())).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema_in(value: Value) -> Value {
        let text = from_response_format(&value).unwrap().unwrap().text;
        let mut schema: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(schema["x-guidance"].take(), settings());
        schema.as_object_mut().unwrap().shift_remove("x-guidance");
        schema
    }

    #[test]
    fn every_way_to_give_a_schema_is_understood() {
        let schema = json!({"type": "integer"});
        for format in [
            json!({"type": "json", "value": schema}),
            json!({"type": "json", "value": schema.to_string()}),
            json!({"type": "json_object", "value": schema}),
            json!({"type": "json_object", "schema": schema}),
            json!({"type": "json_schema", "schema": schema}),
            json!({"type": "json_schema", "value": {"name": "n", "schema": schema}}),
            json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}}),
        ] {
            assert_eq!(schema_in(format), schema);
        }
        assert_eq!(schema_in(json!({"type": "json_object"})), json!({"type": "object"}));
        assert_eq!(from_response_format(&json!({"type": "text"})), Ok(None));
    }

    /// TGI's documentation gives this one, without a `type`.
    #[test]
    fn a_schema_that_describes_an_object_is_one_without_its_type() {
        let schema = json!({"properties": {"animals": {"type": "array"}}, "required": ["animals"]});
        for format in [
            json!({"type": "json", "value": schema}),
            json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}),
        ] {
            assert_eq!(schema_in(format)["type"], "object");
        }
    }

    #[test]
    fn regex_and_grammar_are_text() {
        let regex = Grammar { kind: GrammarKind::Regex, text: "a+".into() };
        assert_eq!(from_native(&json!({"type": "regex", "value": "a+"})), Ok(Some(regex)));
        let lark = from_native(&json!({"type": "grammar", "value": "start: \"a\""})).unwrap().unwrap();
        assert_eq!(lark.kind, GrammarKind::Lark);
        let percent = from_native(&json!({"type": "grammar", "value": "start: /[0-9]+/ \"%\""}));
        assert_eq!(percent.unwrap().unwrap().text, "start: /[0-9]+/ \"%\"");
    }

    #[test]
    fn settings_of_the_compiler_are_not_taken_from_clients() {
        let schema = json!({"type": "string", "x-guidance": {"lenient": true}});
        assert_eq!(schema_in(json!({"type": "json", "value": schema})), json!({"type": "string"}));
    }

    #[test]
    fn invalid_grammars_are_refused_with_their_path() {
        for (format, path) in [
            (json!({}), "`grammar.type`"),
            (json!("json"), "`grammar.type`"),
            (json!({"type": "xml"}), "Given: \"xml\""),
            (json!({"type": "json", "value": 7}), "`grammar.value`"),
            (json!({"type": "json", "value": "{"}), "`grammar.value`"),
            (json!({"type": "json_schema"}), "`grammar.value`"),
            (json!({"type": "json_schema", "json_schema": {"schema": []}}), "`grammar.json_schema.schema`"),
            (json!({"type": "regex", "value": ""}), "`grammar.value`"),
            (json!({"type": "grammar"}), "`grammar.value`"),
            (json!({"type": "grammar", "value": "start: %json {}"}), "`%json`"),
            (json!({"type": "grammar", "value": "start: \"100%\" %json {}"}), "`%json`"),
            (json!({"type": "regex", "value": "a".repeat(40_000)}), "Given: 40000"),
        ] {
            let error = from_native(&format).unwrap_err();
            assert_eq!(error.param(), Some("grammar"));
            assert!(error.to_string().contains(path), "{error}");
        }
    }

    #[test]
    fn a_missing_schema_is_named_as_in_each_dialect() {
        let named = json!({"type": "json_schema"});
        for (error, message) in [
            (from_native(&named).unwrap_err(), "`grammar.value` must be an object"),
            (from_response_format(&named).unwrap_err(), "`response_format.json_schema` must be an object"),
            (
                from_response_format(&json!({"type": "json_schema", "value": 1})).unwrap_err(),
                "`response_format.value` must be an object",
            ),
            (
                from_text_format(&json!({"type": "json_schema", "schema": 1})).unwrap_err(),
                "`text.format.schema` must be a JSON schema",
            ),
        ] {
            assert!(error.to_string().contains(message), "{error}");
        }
        let flat = json!({"type": "json_schema", "name": "n", "schema": {"type": "integer"}});
        let nested = json!({"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}});
        assert_eq!(from_text_format(&flat), from_response_format(&nested));
    }

    #[test]
    fn the_text_of_a_schema_is_no_deeper_than_a_body() {
        let deep = r#"{"items":"#.repeat(200) + "{}" + &"}".repeat(200);
        let error = from_native(&json!({"type": "json", "value": deep})).unwrap_err().to_string();
        assert!(
            error.contains("`grammar.value` may be nested at most 127 levels deep. Given: 201"),
            "{error}"
        );
    }
}
