//! Batches as messages: a topic, a number of 8 bytes and a batch in MessagePack, as vLLM's publisher sends them.

use std::fmt;
use std::sync::Arc;

use penstock_scheduler::StoredBlock;

use super::batch::{Batch, Group};
use super::msgpack::Writer;
use super::zmtp::frame;

/// Where the cache is that is told of, in the word of vLLM for the memory that steps compute on.
const MEDIUM: &str = "GPU";

/// How an event is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchForm {
    /// `[kind, field, …]`, with fields in a fixed order.
    Array,
    /// `{"type": kind, name: field, …}`.
    Map,
}

/// The name that users have for an adapter, by its id.
pub type AdapterName = Box<dyn Fn(&str) -> Option<Arc<str>> + Send>;

/// Writes batches.
pub struct Encoder {
    pub topic: Arc<[u8]>,
    pub form: BatchForm,
    pub names: AdapterName,
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("form", &self.form).finish_non_exhaustive()
    }
}

impl Encoder {
    /// The batch alone.
    pub fn payload(&self, batch: &Batch) -> Vec<u8> {
        let mut writer = Writer::default();
        let groups = batch.groups();
        writer.array(3);
        writer.float(batch.time);
        writer.array(groups.len());
        groups.iter().for_each(|group| self.group(group, &mut writer));
        writer.uint(batch.replica as u64);
        writer.into_bytes()
    }

    /// The whole message, as it goes over every subscriber's connection.
    pub fn message(&self, number: u64, payload: &[u8]) -> Arc<[u8]> {
        frame::message(&[&self.topic, &number.to_be_bytes(), payload]).into()
    }

    fn group(&self, group: &Group<'_>, writer: &mut Writer) {
        match group {
            Group::Stored(blocks) => self.stored(blocks, writer),
            Group::Removed(keys) => {
                self.begin("BlockRemoved", 2, writer);
                self.name("block_hashes", writer).uints(keys.iter().copied());
                self.name("medium", writer).text(MEDIUM);
            }
            Group::Cleared => self.begin("AllBlocksCleared", 0, writer),
        }
    }

    fn stored(&self, blocks: &[&StoredBlock], writer: &mut Writer) {
        let Some(first) = blocks.first() else { return };
        self.begin("BlockStored", 7, writer);
        self.name("block_hashes", writer).uints(blocks.iter().map(|block| block.key.value()));
        let writer = self.name("parent_block_hash", writer);
        match first.parent {
            Some(parent) => writer.uint(parent.value()),
            None => writer.nil(),
        }
        let writer = self.name("token_ids", writer);
        writer.array(blocks.iter().map(|block| block.tokens.len()).sum());
        blocks.iter().flat_map(|block| &*block.tokens).for_each(|token| writer.uint((*token).into()));
        self.name("block_size", writer).uint(first.tokens.len() as u64);
        // A number that vLLM gives adapters. Readers go by the name.
        self.name("lora_id", writer).nil();
        self.name("medium", writer).text(MEDIUM);
        let writer = self.name("lora_name", writer);
        match first.adapter.as_deref().map(|id| (self.names)(id).unwrap_or_else(|| id.into())) {
            Some(name) => writer.text(&name),
            None => writer.nil(),
        }
    }

    fn begin(&self, kind: &str, num_fields: usize, writer: &mut Writer) {
        match self.form {
            BatchForm::Array => writer.array(1 + num_fields),
            BatchForm::Map => {
                writer.map(1 + num_fields);
                writer.text("type");
            }
        }
        writer.text(kind);
    }

    fn name<'a>(&self, name: &str, writer: &'a mut Writer) -> &'a mut Writer {
        if self.form == BatchForm::Map {
            writer.text(name);
        }
        writer
    }
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::{BlockKey, CacheEvent};

    use super::*;

    fn key(value: u64) -> BlockKey {
        BlockKey::from_value(value)
    }

    fn stored(hash: u64, parent: Option<u64>, tokens: &[u32], adapter: Option<&str>) -> CacheEvent {
        let (key, parent, adapter) = (key(hash), parent.map(key), adapter.map(Into::into));
        CacheEvent::Stored(StoredBlock { key, parent, tokens: tokens.into(), adapter })
    }

    /// The batch that `tests/test_block_events.py` encodes with msgspec.
    fn batch() -> Batch {
        let removed = [1, 255, 256, 65535, 65536].into_iter().chain(1000..1011);
        let mut events = vec![
            CacheEvent::Cleared,
            CacheEvent::Cleared,
            stored(u64::MAX, None, &[0, 127, 128, 128_000], None),
            stored(127, Some(u64::MAX), &[5, 6, 7, 8], None),
            stored(128, Some(127), &[0, 127, 128, 128_000], Some("id")),
            stored(1 << 32, None, &[5, 6, 7, 8], Some("unnamed")),
        ];
        events.extend(removed.map(|value| CacheEvent::Removed(key(value))));
        Batch { number: 258, time: 1.5, replica: 200, events }
    }

    fn encoder(form: BatchForm) -> Encoder {
        let name = |id: &str| (id == "id").then(|| Arc::from("a-name-of-thirty-two-characters-"));
        Encoder { topic: b"kv".to_vec().into(), form, names: Box::new(name) }
    }

    fn golden(text: &str) -> String {
        text.split_whitespace().collect()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn batches_are_those_of_msgspec() {
        let payload = encoder(BatchForm::Array).payload(&batch());
        assert_eq!(hex(&payload), golden(include_str!("golden/array.hex")));
        let payload = encoder(BatchForm::Map).payload(&batch());
        assert_eq!(hex(&payload), golden(include_str!("golden/map.hex")));
    }

    #[test]
    fn a_message_has_a_topic_a_number_and_a_batch() {
        let message = encoder(BatchForm::Array).message(258, &[9]);
        assert_eq!(*message, [1, 2, b'k', b'v', 1, 8, 0, 0, 0, 0, 0, 0, 1, 2, 0, 1, 9]);
    }
}
