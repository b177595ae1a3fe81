//! The environment of templates: Jinja as transformers sets it up, with limits on what a template may do.

use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Output, State, Value as Jinja};

use super::{builtins, methods};
use crate::chat::{python_json, python_text};

/// Most instructions that a template may execute: about a hundred for each of ten thousand messages.
const MAX_FUEL: u64 = 1_000_000;

/// An environment with the functions and filters that templates expect.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(MAX_FUEL));
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(write);
    environment.add_filter("tojson", tojson);
    builtins::add_to(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// Writes the value of a `{{ value }}`.
fn write(out: &mut Output, _: &State, value: &Jinja) -> Result<(), minijinja::Error> {
    python_text::write_str(out, value)
}

fn raise_exception(message: String) -> Result<Jinja, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// `tojson` as transformers defines it, which differs from Jinja's: no HTML escapes, Python's separators.
fn tojson(value: &Jinja, kwargs: Kwargs) -> Result<String, minijinja::Error> {
    let invalid =
        |error: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string());
    let separators: Option<(String, String)> =
        match kwargs.get::<Option<Vec<String>>>("separators")?.as_deref() {
            Some([item, key]) => Some((item.clone(), key.clone())),
            _ => None,
        };
    let style = python_json::Style {
        indent: kwargs.get("indent")?,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators,
    };
    kwargs.assert_all_used()?;
    Ok(style.write(&serde_json::to_value(value).map_err(invalid)?))
}

/// The source with tags that mean the same to minijinja as they mean to transformers. `{% generation %}` marks what
/// training computes a loss on; for rendering it is a block that is always shown.
pub(super) fn with_known_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + len];
        out.push_str(&rest[..start]);
        match tag[2..].trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace()) {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            // Jinja keeps the line break after this tag, whatever trims those of blocks.
            "raw" if !tag.ends_with(['-', '+']) => out.extend([tag.trim_end(), " +"]),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[start + len..];
    }
    out + rest
}
