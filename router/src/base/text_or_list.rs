//! Fields that are a string or a list. serde's untagged enums try one variant after the other on a copy, and cannot
//! name the wrong entry of a list; the visitor here looks at the type first and reads the value in place.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// Converts a string by `text` or a list of `Item`s by `list`; for any other type the error names `expected`.
pub fn text_or_list<'de, D: Deserializer<'de>, Item: Deserialize<'de>, T>(
    deserializer: D,
    expected: &'static str,
    text: fn(String) -> T,
    list: fn(Vec<Item>) -> T,
) -> Result<T, D::Error> {
    deserializer.deserialize_any(TextOrList { expected, text, list })
}

struct TextOrList<Item, T> {
    expected: &'static str,
    text: fn(String) -> T,
    list: fn(Vec<Item>) -> T,
}

impl<'de, Item: Deserialize<'de>, T> Visitor<'de> for TextOrList<Item, T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Ok((self.text)(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<T, E> {
        Ok((self.text)(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<T, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(items)).map(self.list)
    }
}
