//! Cheap looks into one JSON object without parsing it: where a key's value starts, and what string it is.
//!
//! Sound for valid JSON: inside a string every quote is escaped, so `"key"` followed by a colon can only be a key.
//! It does not tell nesting levels apart; callers choose keys that are unique where they look.

use memchr::memmem::Finder;

/// Looks for one key.
#[derive(Debug)]
pub struct Key(Finder<'static>);

impl Key {
    /// Prepares the search for a key; `quoted` is its name with the quotes around it.
    pub fn new(quoted: &'static str) -> Self {
        Self(Finder::new(quoted.as_bytes()))
    }

    /// The bytes that follow each use of the key, from the first byte of its value on.
    pub fn values<'j>(&self, json: &'j [u8]) -> impl Iterator<Item = &'j [u8]> {
        let len = self.0.needle().len();
        self.0.find_iter(json).filter_map(move |at| {
            let after = json[at + len..].trim_ascii_start();
            after.strip_prefix(b":").map(<[u8]>::trim_ascii_start)
        })
    }

    /// The first value of the key that is a string with something in it, still escaped.
    pub fn text<'j>(&self, json: &'j [u8]) -> Option<&'j [u8]> {
        self.values(json).filter_map(string_body).find(|body| !body.is_empty())
    }

    /// Whether the key holds an object somewhere.
    pub fn has_object(&self, json: &[u8]) -> bool {
        self.values(json).any(|value| value.starts_with(b"{"))
    }

    /// Whether the key holds a string somewhere, be it empty.
    pub fn has_string(&self, json: &[u8]) -> bool {
        self.values(json).any(|value| value.starts_with(b"\""))
    }
}

/// The inside of the JSON string at the start of `value`, still escaped.
fn string_body(value: &[u8]) -> Option<&[u8]> {
    let body = value.strip_prefix(b"\"")?;
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', body.get(from..)?)?;
        if body[at] == b'"' {
            return Some(&body[..at]);
        }
        from = at + 2;
    }
}

/// Turns the inside of a JSON string into text; what is not valid becomes the empty string.
pub fn unescape(body: &[u8]) -> String {
    let quoted = [b"\"", body, b"\""].concat();
    serde_json::from_slice(&quoted).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn skips_a_key_inside_a_string_and_a_value_of_another_type() {
        let json =
            br#"{"a":"\"content\":\"no\"","b":"content","logprobs":{"content":[1]},"d":{"content" : "yes"}}"#;
        assert_eq!(Key::new("\"content\"").text(json), Some(&b"yes"[..]));
    }

    #[test]
    fn empty_and_null_texts_are_no_text() {
        assert_eq!(Key::new("\"text\"").text(br#"{"text":"","x":{"text":null}}"#), None);
    }

    #[test]
    fn a_string_may_end_with_an_escaped_backslash() {
        assert_eq!(Key::new("\"t\"").text(br#"{"t":"a\\","u":"b"}"#), Some(&br"a\\"[..]));
    }

    #[test]
    fn survives_text_that_is_cut() {
        for cut in [&br#"{"t":"a"#[..], br#"{"t":"\"#, br#"{"t":"#, br#"{"t""#] {
            assert_eq!(Key::new("\"t\"").text(cut), None);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_full_parse(before in ".{0,8}", content in ".{1,12}", after in ".{0,8}") {
            let json = serde_json::json!({"x": before, "delta": {"content": content}, "y": after}).to_string();
            let found = Key::new("\"content\"").text(json.as_bytes()).map(unescape);
            prop_assert_eq!(found, Some(content));
        }
    }
}
