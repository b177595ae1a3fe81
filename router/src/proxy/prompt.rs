//! Finds the prompt in the body of a request, and cuts it into chunks with keys.

use std::hash::{BuildHasher, RandomState};

use super::index::ChunkKey;
use super::members::Members;

/// Bytes in a chunk: about two blocks of a cache.
pub const CHUNK_BYTES: usize = 128;
/// About as many as a token has in English text.
pub const BYTES_PER_TOKEN: usize = 4;

/// The fields that decide which cache entries a request may use, besides its prompt and its caller.
const SCOPE: [&[u8]; 2] = [b"model", b"cache_salt"];
/// Where requests have their prompts, in the order in which chat templates render them: so one conversation has one
/// beginning, whatever the order of the fields is in which clients send them.
const PROMPTS: [&[u8]; 12] = [
    b"system",
    b"instructions",
    b"tools",
    b"messages",
    b"input",
    b"inputs",
    b"prompt",
    b"text_input",
    b"input_prefix",
    b"input_suffix",
    b"suffix",
    b"instances",
];

/// The prompt of a request, as far as it matters for where it goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The keys of its whole chunks.
    pub chunks: Vec<ChunkKey>,
    /// Its length in bytes, as it is written in JSON.
    pub num_bytes: usize,
}

impl Prompt {
    /// About how many tokens it has.
    pub fn num_tokens(&self) -> u32 {
        u32::try_from(self.num_bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX)
    }
}

/// Makes keys. They differ from one start of the proxy to the next, so nobody can make prompts whose keys are equal.
#[derive(Debug, Clone, Default)]
pub struct PromptReader {
    hasher: RandomState,
}

impl PromptReader {
    /// The prompt in this body, of the caller with this API key. Callers share nothing, as in the caches of upstreams.
    pub fn read(&self, key: Option<&[u8]>, body: &[u8]) -> Prompt {
        let members: Vec<_> = Members::of(body).collect();
        let value_of = |name: &[u8]| members.iter().find(|member| member.0 == name).map(|member| member.1);
        let scope = self.hasher.hash_one((key, SCOPE.map(value_of)));
        let mut text = Vec::new();
        for name in PROMPTS {
            text.extend_from_slice(value_of(name).unwrap_or_default());
        }
        let chunks = text.chunks_exact(CHUNK_BYTES).scan(scope, |before, chunk| {
            *before = self.hasher.hash_one((*before, chunk));
            Some(*before)
        });
        Prompt { chunks: chunks.collect(), num_bytes: text.len() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn chat(contents: &[&str]) -> Value {
        let messages: Vec<_> = contents.iter().map(|it| json!({"role": "user", "content": it})).collect();
        json!({"model": "m", "messages": messages, "max_tokens": 5})
    }

    fn shared(left: &Prompt, right: &Prompt) -> usize {
        left.chunks.iter().zip(&right.chunks).take_while(|(left, right)| left == right).count()
    }

    #[test]
    fn the_next_turn_of_a_conversation_begins_as_the_one_before() {
        let reader = PromptReader::default();
        let read = |body: &Value| reader.read(None, body.to_string().as_bytes());
        let (first, second) = ("a ".repeat(300), "b ".repeat(300));
        let before = read(&chat(&[&first]));
        let after = read(&chat(&[&first, "yes", &second]));
        assert_eq!(before.chunks.len(), before.num_bytes / CHUNK_BYTES);
        assert!(shared(&before, &after) >= before.chunks.len() - 1);
        assert_eq!(shared(&after, &read(&chat(&[&second]))), 0);
    }

    #[test]
    fn the_order_of_fields_and_those_that_are_no_prompt_do_not_matter() {
        let reader = PromptReader::default();
        let text = "x".repeat(500);
        let one = json!({"prompt": text, "model": "m", "temperature": 1});
        let other = json!({"stream": true, "model": "m", "prompt": text});
        let read = |key, body: &Value| reader.read(key, body.to_string().as_bytes());
        assert_eq!(read(None, &one), read(None, &other));
        assert_eq!(read(None, &one).chunks.len(), 3);
        for unlike in [json!({"prompt": text}), json!({"prompt": text, "model": "m", "cache_salt": "s"})] {
            assert_eq!(shared(&read(None, &one), &read(None, &unlike)), 0, "{unlike}");
        }
        assert_eq!(shared(&read(Some(b"key"), &one), &read(None, &one)), 0, "a caller with a key");
        assert_eq!(
            shared(&read(None, &one), &PromptReader::default().read(None, one.to_string().as_bytes())),
            0
        );
    }

    #[test]
    fn every_dialect_has_its_prompt_in_a_known_field() {
        let (reader, text) = (PromptReader::default(), "word ".repeat(100));
        let message = json!([{"role": "user", "content": text}]);
        for body in [
            json!({"inputs": text}),
            json!({"prompt": [text]}),
            json!({"messages": message}),
            json!({"input": text}),
            json!({"system": text, "messages": []}),
            json!({"text_input": text}),
            json!({"inputs": [{"name": "text_input", "data": [text]}]}),
            json!({"input_prefix": text, "input_suffix": ""}),
            json!({"instances": [{"inputs": text}]}),
        ] {
            let prompt = reader.read(None, body.to_string().as_bytes());
            assert!(prompt.chunks.len() >= 3, "{body}");
            assert!((125..140).contains(&prompt.num_tokens()), "{body}");
        }
    }

    proptest! {
        #[test]
        fn no_body_is_too_odd_to_be_read(body in prop::collection::vec(any::<u8>(), 0..300)) {
            let prompt = PromptReader::default().read(None, &body);
            prop_assert!(prompt.chunks.len() * CHUNK_BYTES <= prompt.num_bytes);
            prop_assert!(prompt.num_bytes <= body.len());
        }
    }
}
