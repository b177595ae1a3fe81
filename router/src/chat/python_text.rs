//! Values of templates as Python's `str` writes them: Jinja shows them so, and models saw it in training.

use std::fmt::{self, Write};

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::python_json::python_number;
use crate::text::control_tokens::BREAK;

/// Most levels of lists and maps. A namespace of a template may hold itself.
const MAX_DEPTH: usize = 100;

/// Writes a value as `str` does.
pub fn write_str(out: &mut impl Write, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value, 0),
    }
}

/// Writes a value as `repr` does.
fn write_repr(out: &mut impl Write, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Ok(out.write_str("...")?);
    }
    match value.kind() {
        ValueKind::None => out.write_str("None")?,
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" })?,
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default())?,
        ValueKind::Number => match serde_json::to_value(value) {
            Ok(number) => out.write_str(&python_number(number.to_string()))?,
            Err(_) => write!(out, "{value}")?,
        },
        ValueKind::Seq | ValueKind::Iterable => {
            write_items(out, '[', value, |out, item| write_repr(out, &item, depth + 1))?;
            out.write_char(']')?;
        }
        ValueKind::Map => {
            write_items(out, '{', value, |out, key| {
                write_repr(out, &key, depth + 1)?;
                out.write_str(": ")?;
                write_repr(out, &value.get_item(&key)?, depth + 1)
            })?;
            out.write_char('}')?;
        }
        ValueKind::Undefined => out.write_str("Undefined")?,
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

fn write_items<W: Write>(
    out: &mut W,
    open: char,
    items: &Value,
    write: impl Fn(&mut W, Value) -> Result<(), Error>,
) -> Result<(), Error> {
    out.write_char(open)?;
    for (i, item) in items.try_iter()?.enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        write(out, item)?;
    }
    Ok(())
}

/// Writes a text in single quotes, or in double quotes if it has single and no double ones.
fn write_quoted(out: &mut impl Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            // A BREAK is no part of the text: it must stay recognisable.
            BREAK => out.write_char(c)?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if is_printable(c) => out.write_char(c)?,
            c if u32::from(c) < 0x100 => write!(out, "\\x{:02x}", u32::from(c))?,
            c if u32::from(c) < 0x1_0000 => write!(out, "\\u{:04x}", u32::from(c))?,
            c => write!(out, "\\U{:08x}", u32::from(c))?,
        }
    }
    out.write_char(quote)
}

/// Whether Python takes the character to be printable, for all but the rarest characters: no control characters, no
/// marks of a direction or a format, no spaces but the usual one.
fn is_printable(c: char) -> bool {
    let is_format = matches!(u32::from(c),
        0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f
        | 0xe000..=0xf8ff | 0xfeff | 0xfff9..=0xfffb | 0xe0001..=0xe007f);
    c == ' ' || !(is_format || c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn str_of(value: serde_json::Value) -> String {
        let mut out = String::new();
        write_str(&mut out, &Value::from_serialize(value)).unwrap();
        out
    }

    // Expected values: str(value) of Python 3.11.

    #[test]
    fn constants_and_numbers_are_pythons() {
        assert_eq!(str_of(json!(null)), "None");
        assert_eq!(str_of(json!([true, false, 1, 2.0, 1e16, -0.5])), "[True, False, 1, 2.0, 1e+16, -0.5]");
    }

    #[test]
    fn texts_are_as_they_are_and_quoted_inside_of_others() {
        assert_eq!(str_of(json!("it's \"so\"\n")), "it's \"so\"\n");
        let texts = json!(["a", "it's", "\"b\"", "'\"", "é\n\\\t\u{7f}\u{a0}\u{200b}😀", ""]);
        assert_eq!(str_of(texts), r#"['a', "it's", '"b"', '\'"', 'é\n\\\t\x7f\xa0\u200b😀', '']"#);
    }

    #[test]
    fn maps_keep_their_order() {
        let value = json!({"type": "function", "function": {"b": [], "a": {}}});
        assert_eq!(str_of(value), "{'type': 'function', 'function': {'b': [], 'a': {}}}");
    }

    #[test]
    fn deep_values_end() {
        let nested = (0..500).fold(Value::from(1), |inner, _| Value::from(vec![inner]));
        let mut out = String::new();
        write_str(&mut out, &nested).unwrap();
        assert!(out.contains("..."), "{out}");
    }
}
