//! Tells the outermost members of a body in JSON apart. The body is not parsed: what is wrong with it is for the upstream to
//! say.

/// The members of an object in JSON, name and value as they are written, up to the first byte that cannot be.
pub struct Members<'a> {
    rest: &'a [u8],
    /// The byte that comes before the next member.
    opening: u8,
}

impl<'a> Members<'a> {
    /// The members of the object in this body.
    pub fn of(body: &'a [u8]) -> Self {
        Self { rest: body, opening: b'{' }
    }

    /// The value of the first member of this name.
    pub fn find(body: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
        Self::of(body).find(|member| member.0 == name).map(|member| member.1)
    }

    fn skip(&mut self, expected: u8) -> Option<()> {
        self.rest = self.rest.trim_ascii_start().strip_prefix(&[expected])?.trim_ascii_start();
        Some(())
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    /// A text with its quotation marks.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = text_len(self.rest)?;
        Some(self.take(len))
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        let len = match self.rest.first()? {
            b'"' => text_len(self.rest)?,
            b'{' | b'[' => nested_len(self.rest)?,
            _ => self.rest.iter().position(|byte| b",}]".contains(byte) || byte.is_ascii_whitespace())?,
        };
        (len > 0).then(|| self.take(len))
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.skip(self.opening)?;
        self.opening = b',';
        let name = self.text()?;
        self.skip(b':')?;
        Some((&name[1..name.len() - 1], self.value()?))
    }
}

/// The length of the text that begins here, both quotation marks included.
fn text_len(bytes: &[u8]) -> Option<usize> {
    bytes.first().filter(|first| **first == b'"')?;
    let mut is_escaped = false;
    let end = bytes[1..].iter().position(|byte| match byte {
        _ if is_escaped => {
            is_escaped = false;
            false
        }
        b'\\' => {
            is_escaped = true;
            false
        }
        byte => *byte == b'"',
    })?;
    Some(end + 2)
}

/// The length of the object or list that begins here.
fn nested_len(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at += text_len(&bytes[at..])? - 1,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn members(body: &str) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Members::of(body.as_bytes()).map(|(name, value)| (text(name), text(value))).collect()
    }

    #[test]
    fn members_are_told_apart_as_they_are_written() {
        let body = r#" { "a" : "x\"}{\\", "b":[1,{"c":"]"}] ,"d": -1.5e3 , "e":null}"#;
        let expected = [("a", r#""x\"}{\\""#), ("b", r#"[1,{"c":"]"}]"#), ("d", "-1.5e3"), ("e", "null")];
        assert_eq!(members(body), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn what_is_no_object_has_no_members_and_a_broken_one_those_before_the_break() {
        for body in
            ["", "{", "{}", "[1]", "null", "\"a\"", "{\"a", "{\"a\"", "{\"a\":", "{\"a\":[", "{\"a\":\"\\"]
        {
            assert_eq!(members(body), [], "{body}");
        }
        assert_eq!(members(r#"{"a":1,"b":]"#).len(), 1);
        assert_eq!(members(r#"{"a":1 "b":2}"#).len(), 1);
    }

    proptest! {
        #[test]
        fn members_are_those_that_a_parser_finds(text in "[ -~]{0,40}", numbers in prop::collection::vec(any::<i32>(), 0..4)) {
            let body = json!({"first": text, "second": {"inner": [numbers, {"x": text}]}, "third": true});
            let found: Vec<_> = members(&body.to_string());
            prop_assert_eq!(found.len(), 3);
            for (name, value) in found {
                prop_assert_eq!(&serde_json::from_str::<Value>(&value).unwrap(), &body[name]);
            }
        }
    }
}
