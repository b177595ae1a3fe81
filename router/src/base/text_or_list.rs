//! Fields that are a text or a list. serde's untagged enums try one after the other on a copy, and cannot say where in
//! the list something does not fit; this looks at what comes and reads it in place.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// Reads a text by `text` or a list of `Item`s by `list`; of anything else is said what was expected.
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
