//! JSON as Python's `json.dumps` writes it, which is what models saw in training.

use serde_json::Value;

use crate::text::control_tokens::BREAK;

/// The arguments of `json.dumps`.
#[derive(Debug, Clone, Default)]
pub struct Style {
    /// Spaces per level; `None` is one line.
    pub indent: Option<usize>,
    /// Write `\u00e9` for `é`.
    pub ensure_ascii: bool,
    /// Sort the keys of objects.
    pub sort_keys: bool,
    /// Between items, and between key and value.
    pub separators: Option<(String, String)>,
}

impl Style {
    /// Writes a value.
    pub fn write(&self, value: &Value) -> String {
        let mut out = String::new();
        self.value(&mut out, value, 0);
        out
    }

    fn value(&self, out: &mut String, value: &Value, depth: usize) {
        match value {
            Value::String(text) => self.string(out, text),
            Value::Number(number) => out.push_str(&python_number(number.to_string())),
            Value::Array(items) => self.container(out, ('[', ']'), items.iter(), depth, |out, item| {
                self.value(out, item, depth + 1)
            }),
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if self.sort_keys {
                    fields.sort_by_key(|(key, _)| *key);
                }
                self.container(out, ('{', '}'), fields.into_iter(), depth, |out, (key, value)| {
                    self.string(out, key);
                    out.push_str(self.separators.as_ref().map_or(": ", |(_, key)| key));
                    self.value(out, value, depth + 1);
                })
            }
            Value::Null | Value::Bool(_) => out.push_str(&value.to_string()),
        }
    }

    fn container<T>(
        &self,
        out: &mut String,
        (open, close): (char, char),
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        mut write: impl FnMut(&mut String, T),
    ) {
        out.push(open);
        let is_empty = items.len() == 0;
        for (i, item) in items.enumerate() {
            if i > 0 {
                out.push_str(self.item_separator());
            }
            self.new_line(out, depth + 1);
            write(out, item);
        }
        if !is_empty {
            self.new_line(out, depth);
        }
        out.push(close);
    }

    fn item_separator(&self) -> &str {
        match (&self.separators, self.indent) {
            (Some((item, _)), _) => item,
            (None, Some(_)) => ",",
            (None, None) => ", ",
        }
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        let quoted = Value::from(text).to_string();
        if !self.ensure_ascii {
            return out.push_str(&quoted);
        }
        for c in quoted.chars() {
            // A BREAK is no part of the text: it must stay recognisable.
            if c.is_ascii() || c == BREAK {
                out.push(c);
            } else {
                let mut units = [0; 2];
                out.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
    }
}

/// Python writes exponents with a sign and two digits.
pub(super) fn python_number(number: String) -> String {
    let Some((mantissa, exponent)) = number.split_once(['e', 'E']) else { return number };
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent.trim_start_matches('+')),
    };
    format!("{}e{sign}{digits:0>2}", mantissa.strip_suffix(".0").unwrap_or(mantissa))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // Expected values: json.dumps(value, ensure_ascii=False, ...) of Python 3.11.

    #[test]
    fn one_line_has_pythons_separators_and_no_html_escapes() {
        let value = json!({"b": [1, 2.5, true, null], "a": "é<&>'\"\n\u{1}", "e": {}, "l": []});
        assert_eq!(
            Style::default().write(&value),
            r#"{"b": [1, 2.5, true, null], "a": "é<&>'\"\n\u0001", "e": {}, "l": []}"#
        );
    }

    #[test]
    fn indented_output_breaks_lines_as_python_does() {
        let style = Style { indent: Some(2), sort_keys: true, ..Style::default() };
        assert_eq!(
            style.write(&json!({"b": [1, {"c": []}], "a": 1})),
            "{\n  \"a\": 1,\n  \"b\": [\n    1,\n    {\n      \"c\": []\n    }\n  ]\n}"
        );
    }

    #[test]
    fn ascii_output_uses_utf16_escapes() {
        let style = Style { ensure_ascii: true, ..Style::default() };
        assert_eq!(style.write(&json!("é😀")), r#""\u00e9\ud83d\ude00""#);
    }

    #[test]
    fn numbers_are_pythons() {
        assert_eq!(
            Style::default().write(&json!([1.0, 1e16, 1e-7, 1.5e300])),
            "[1.0, 1e+16, 1e-07, 1.5e+300]"
        );
    }

    #[test]
    fn given_separators_are_used() {
        let style = Style { separators: Some((",".into(), ":".into())), ..Style::default() };
        assert_eq!(style.write(&json!({"a": [1, 2]})), r#"{"a":[1,2]}"#);
    }
}
