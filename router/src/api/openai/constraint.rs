//! The fields that constrain an output: OpenAI's, and those of vLLM, SGLang and llama.cpp for each kind of grammar.

use penstock_scheduler::Grammar;
use serde_json::Value;

use crate::api::known_fields::is_neutral;
use crate::base::error::Error;
use crate::grammar;

/// The field of OpenAI.
pub(super) const RESPONSE_FORMAT: &str = "response_format";

/// Lists the fields of a request that may constrain its output, each with its value.
macro_rules! constraint_fields {
    ($request:expr) => {{
        let request = $request;
        [
            ("response_format", &request.response_format),
            ("guided_json", &request.guided_json),
            ("guided_regex", &request.guided_regex),
            ("guided_choice", &request.guided_choice),
            ("guided_grammar", &request.guided_grammar),
            ("structured_outputs", &request.structured_outputs),
            ("regex", &request.regex),
            ("ebnf", &request.ebnf),
            ("json_schema", &request.json_schema),
            ("grammar", &request.grammar),
        ]
    }};
}

pub(super) use constraint_fields;

/// How `response_format` is read; the responses of OpenAI have another form of it.
type ReadFormat = fn(&Value) -> Result<Option<Grammar>, Error>;

/// The grammar that the fields ask for, and the name of the field that has it. At most one field may ask for one.
/// `format` is the client's name for `response_format`.
pub(super) fn grammar_of<const N: usize>(
    fields: [(&'static str, &Option<Value>); N],
    read_format: ReadFormat,
    format: &'static str,
) -> Result<(&'static str, Option<Grammar>), Error> {
    let mut found: Option<(&'static str, Grammar)> = None;
    for (name, value) in fields {
        let is_format = name == RESPONSE_FORMAT;
        let Some(value) = value.as_ref().filter(|value| is_format || !is_neutral(value, &[])) else {
            continue;
        };
        let grammar = if is_format { read_format(value)? } else { grammar::from_field(name, value)? };
        let name = if is_format { format } else { name };
        match (&found, grammar) {
            (Some((other, _)), Some(_)) => {
                let message = format!("`{name}` cannot go together with `{other}`");
                return Err(Error::invalid(name, message));
            }
            (None, Some(grammar)) => found = Some((name, grammar)),
            (_, None) => {}
        }
    }
    Ok(found.map_or((format, None), |(name, grammar)| (name, Some(grammar))))
}
