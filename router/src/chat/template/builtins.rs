//! Filters and tests that Jinja has otherwise than minijinja.

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, Value};

use super::bounded::BoundedText;
use crate::chat::python_text;

/// Puts them in the place of minijinja's.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("string", string);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("number", is_number);
    environment.add_test("lower", |value: &Value| has_case(value, char::is_lowercase, char::is_uppercase));
    environment.add_test("upper", |value: &Value| has_case(value, char::is_uppercase, char::is_lowercase));
}

/// A value as text; within a bound, because a template can make a list of itself again and again.
fn string(value: &Value) -> Result<String, Error> {
    let mut text = BoundedText::default();
    python_text::write_str(&mut text, value)?;
    Ok(text.into_text())
}

/// The number of items of a value; 0 if the value is undefined.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { minijinja::filters::length(value) }
}

/// The default, which is 0, for what is no number.
fn int(value: &Value, default: Option<Value>) -> Value {
    let number = match value.as_str().map(str::trim) {
        Some(text) => text.parse().ok().or_else(|| whole(text.parse().ok()?)),
        None => i128::try_from(value.clone()).ok().or_else(|| whole(f64::try_from(value.clone()).ok()?)),
    };
    number.map_or_else(|| default.unwrap_or_else(|| Value::from(0)), Value::from)
}

fn whole(number: f64) -> Option<i128> {
    number.is_finite().then_some(number as i128)
}

/// The default, which is 0.0, for what is no number.
fn float(value: &Value, default: Option<Value>) -> Value {
    let number = value.as_str().and_then(|text| text.trim().parse::<f64>().ok());
    let number = number.or_else(|| f64::try_from(value.clone()).ok());
    number.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from)
}

/// Whether a value is iterable in Python: `none`, numbers and booleans are not. Templates ask this of missing tools.
fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

/// All that has a length and items: texts and maps, too.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
}

fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

/// Whether a value has letters of one case and none of the other.
fn has_case(value: &Value, wanted: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    value.as_str().is_some_and(|text| text.contains(wanted) && !text.contains(other))
}
