//! The results of compiling the grammars that were used last.

use std::collections::HashMap;

use penstock_scheduler::Grammar;

const MAX_ENTRIES: usize = 256;
/// Most bytes of all grammars together.
const MAX_BYTES: usize = 8 << 20;

/// Whether a grammar works; the error is the reason for the client.
pub(super) type Checked = Result<(), String>;

/// A cache that evicts the least recently used grammar.
#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: HashMap<Grammar, Entry>,
    num_bytes: usize,
    now: u64,
}

#[derive(Debug)]
struct Entry {
    checked: Checked,
    last_used: u64,
}

impl Cache {
    pub fn get(&mut self, grammar: &Grammar) -> Option<Checked> {
        self.now += 1;
        let entry = self.entries.get_mut(grammar)?;
        entry.last_used = self.now;
        Some(entry.checked.clone())
    }

    pub fn put(&mut self, grammar: Grammar, checked: Checked) {
        self.now += 1;
        let num_bytes = grammar.text.len();
        if self.entries.insert(grammar, Entry { checked, last_used: self.now }).is_none() {
            self.num_bytes += num_bytes;
        }
        while self.entries.len() > MAX_ENTRIES || self.num_bytes > MAX_BYTES {
            self.evict_oldest();
        }
    }

    fn evict_oldest(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_used);
        let Some(oldest) = oldest.map(|(grammar, _)| grammar.clone()) else { return };
        self.entries.remove(&oldest);
        self.num_bytes -= oldest.text.len();
    }
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::GrammarKind;

    use super::*;

    fn regex(text: String) -> Grammar {
        Grammar { kind: GrammarKind::Regex, text }
    }

    #[test]
    fn the_least_recently_used_is_evicted() {
        let mut cache = Cache::default();
        let numbered = |number: usize| regex(number.to_string());
        cache.put(numbered(0), Err("bad".to_owned()));
        for number in 1..MAX_ENTRIES {
            cache.put(numbered(number), Ok(()));
        }
        assert_eq!(cache.get(&numbered(0)), Some(Err("bad".to_owned())));
        cache.put(numbered(MAX_ENTRIES), Ok(()));
        assert!(cache.get(&numbered(0)).is_some());
        assert_eq!(cache.get(&numbered(1)), None);
    }

    #[test]
    fn long_grammars_evict_others_by_their_bytes() {
        let mut cache = Cache::default();
        for letter in ["a", "b", "c"] {
            cache.put(regex(letter.repeat(MAX_BYTES / 2)), Ok(()));
        }
        assert_eq!(cache.entries.len(), 2);
        assert_eq!(cache.num_bytes, MAX_BYTES);
    }
}
