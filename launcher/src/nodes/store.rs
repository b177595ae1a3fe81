//! The store of one start of a group, in which its ranks tell each other where they listen. Words by key, bounded.

use std::collections::BTreeMap;

use super::messages::{StoreAnswer, StoreRequest};

/// All keys and values together. The addresses of a thousand ranks of gloo take less than a tenth.
const MAX_BYTES: usize = 64 << 20;

/// The words of one start.
#[derive(Debug, Default)]
pub struct Store {
    values: BTreeMap<String, String>,
    num_bytes: usize,
}

impl Store {
    /// Does what is asked for.
    pub fn answer(&mut self, request: StoreRequest) -> StoreAnswer {
        match request {
            StoreRequest::Get { key } => StoreAnswer::Value(self.values.get(&key).cloned()),
            StoreRequest::Set { key, value } => self.put(key, value),
            StoreRequest::Delete { key } => StoreAnswer::Value(self.remove(&key)),
            StoreRequest::Replace { key, expected, value } => {
                let found = self.values.get(&key);
                if found == expected.as_ref() {
                    self.put(key, value)
                } else {
                    StoreAnswer::Value(found.cloned())
                }
            }
        }
    }

    fn put(&mut self, key: String, value: String) -> StoreAnswer {
        self.remove(&key);
        if self.num_bytes + key.len() + value.len() > MAX_BYTES {
            return StoreAnswer::Refused(format!("the ranks told each other more than {MAX_BYTES} bytes"));
        }
        self.num_bytes += key.len() + value.len();
        self.values.insert(key, value.clone());
        StoreAnswer::Value(Some(value))
    }

    fn remove(&mut self, key: &str) -> Option<String> {
        let value = self.values.remove(key)?;
        self.num_bytes -= key.len() + value.len();
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(answer: StoreAnswer) -> Option<String> {
        match answer {
            StoreAnswer::Value(value) => value,
            StoreAnswer::Refused(why) => panic!("{why}"),
        }
    }

    fn replace(store: &mut Store, expected: Option<&str>, new: &str) -> Option<String> {
        let (key, value_of) = ("k".to_owned(), str::to_owned);
        value(store.answer(StoreRequest::Replace {
            key,
            expected: expected.map(value_of),
            value: new.to_owned(),
        }))
    }

    #[test]
    fn a_value_is_replaced_only_if_nobody_was_faster() {
        let mut store = Store::default();
        assert_eq!(replace(&mut store, Some("1"), "2"), None, "there is none");
        assert_eq!(replace(&mut store, None, "1").as_deref(), Some("1"));
        assert_eq!(replace(&mut store, None, "2").as_deref(), Some("1"), "somebody was");
        assert_eq!(replace(&mut store, Some("1"), "2").as_deref(), Some("2"));
        assert_eq!(value(store.answer(StoreRequest::Delete { key: "k".to_owned() })).as_deref(), Some("2"));
        assert_eq!(value(store.answer(StoreRequest::Get { key: "k".to_owned() })), None);
        assert_eq!(store.num_bytes, 0);
    }

    #[test]
    fn its_size_is_bounded_and_a_value_that_is_replaced_is_not_counted_twice() {
        let mut store = Store::default();
        let set = |key: &str, len| StoreRequest::Set { key: key.to_owned(), value: "x".repeat(len) };
        assert!(value(store.answer(set("a", MAX_BYTES - 1))).is_some());
        assert!(value(store.answer(set("a", MAX_BYTES - 1))).is_some());
        assert!(matches!(store.answer(set("b", 0)), StoreAnswer::Refused(_)));
    }
}
