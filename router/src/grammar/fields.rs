//! Reads the grammars in fields of vLLM, SGLang and llama.cpp, each of which has a field for each kind of grammar.

use penstock_scheduler::{Grammar, GrammarKind};
use serde_json::Value;

use super::ebnf;
use super::parse::{MAX_TEXT_BYTES, Reader, any_object};
use crate::base::error::Error;

/// The kinds of vLLM's `structured_outputs`, as its fields name them.
const KINDS: &str = "json, regex, choice, grammar, json_object";
/// Fields of `structured_outputs` that say how it is enforced, and not what.
const WITHOUT_EFFECT: [&str; 3] = ["disable_fallback", "backend", "_backend"];

/// The signs that a regular expression gives a meaning.
const META: &str = r"\.+*?()|[]{}^$#&-~";

/// Reads the grammar in a field of the request; `None` if the field asks for nothing.
pub(crate) fn from_field(name: &'static str, value: &Value) -> Result<Option<Grammar>, Error> {
    let reader = Reader { param: name, schema_in: None };
    match name {
        "structured_outputs" => reader.structured_outputs(value),
        "guided_json" | "json_schema" => reader.schema("", value).map(Some),
        "guided_choice" => reader.choice("", value).map(Some),
        "guided_regex" | "regex" => reader.text("", GrammarKind::Regex, value).map(Some),
        _ => reader.lark_or_ebnf("", value).map(Some),
    }
}

impl Reader {
    /// vLLM's object, which has one kind of grammar.
    fn structured_outputs(&self, value: &Value) -> Result<Option<Grammar>, Error> {
        let Value::Object(fields) = value else {
            return self.refuse(format!("`{}` must be an object with one of {KINDS}", self.param));
        };
        let is_given = |(name, value): &(&String, &Value)| {
            !value.is_null() && **value != Value::Bool(false) && !WITHOUT_EFFECT.contains(&name.as_str())
        };
        let mut given = fields.iter().filter(is_given);
        match (given.next(), given.next()) {
            (None, _) => Ok(None),
            (Some((name, value)), None) => self.kind(name, value).map(Some),
            (Some((one, _)), Some((other, _))) => {
                self.refuse(format!("`{0}.{one}` cannot go together with `{0}.{other}`", self.param))
            }
        }
    }

    fn kind(&self, name: &str, value: &Value) -> Result<Grammar, Error> {
        match name {
            "json" => self.schema(name, value),
            "regex" => self.text(name, GrammarKind::Regex, value),
            "choice" => self.choice(name, value),
            "grammar" => self.lark_or_ebnf(name, value),
            "json_object" => Ok(any_object()),
            other => {
                let other: String = other.chars().take(50).collect();
                self.refuse(format!("`{}.{other}` is not supported; it may have {KINDS}", self.param))
            }
        }
    }

    /// One of several texts, as it is.
    fn choice(&self, path: &str, value: &Value) -> Result<Grammar, Error> {
        let texts: Option<Vec<&str>> = match value {
            Value::String(text) => Some(vec![text]),
            Value::Array(texts) => texts.iter().map(Value::as_str).collect(),
            _ => None,
        };
        let Some(texts) = texts.filter(|texts| !texts.is_empty()) else {
            return self.refuse(format!("{} must be a list of strings", self.path(path)));
        };
        if texts.iter().all(|text| text.is_empty()) {
            let path = self.path(path);
            return self.refuse(format!("{path} must have a string that is not empty. Given: {value}"));
        }
        let regex: Vec<String> = texts.into_iter().map(escaped).collect();
        self.text(path, GrammarKind::Regex, &regex.join("|").into())
    }

    /// A grammar in Lark, or in EBNF.
    fn lark_or_ebnf(&self, path: &str, value: &Value) -> Result<Grammar, Error> {
        match value.as_str() {
            Some(text) if text.contains("::=") && text.len() <= MAX_TEXT_BYTES => match ebnf::to_lark(text) {
                Ok(text) => Ok(Grammar { kind: GrammarKind::Lark, text }),
                Err(reason) => self.refuse(format!("{} cannot be used: {reason}", self.path(path))),
            },
            _ => self.text(path, GrammarKind::Lark, value),
        }
    }
}

/// A regular expression that matches this text alone.
fn escaped(text: &str) -> String {
    let mut regex = String::with_capacity(text.len());
    for character in text.chars() {
        if META.contains(character) {
            regex.push('\\');
        }
        regex.push(character);
    }
    regex
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn choices_that_are_all_empty_are_refused_with_field_value_and_reason() {
        for (name, value, message) in [
            (
                "guided_choice",
                json!([""]),
                "`guided_choice` must have a string that is not empty. Given: [\"\"]",
            ),
            (
                "structured_outputs",
                json!({"choice": ["", ""]}),
                "`structured_outputs.choice` must have a string that is not empty. Given: [\"\",\"\"]",
            ),
        ] {
            let error = from_field(name, &value).unwrap_err();
            assert_eq!(error.param(), Some(name));
            assert_eq!(error.to_string(), format!("Input validation error: {message}"));
        }
        let either = from_field("guided_choice", &json!(["", "a|b"])).unwrap().unwrap();
        assert_eq!(either.text, r"|a\|b");
    }
}
