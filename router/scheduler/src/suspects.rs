//! Requests that may be what made the shards crash.

use std::collections::BTreeMap;

use crate::request::RequestId;

/// The suspects. They are tried one after the other, oldest first.
#[derive(Debug, Default)]
pub struct Suspects {
    /// The length at which each has computed again all that was in flight when the shards were lost.
    passing_lens: BTreeMap<RequestId, u32>,
}

/// One suspect.
#[derive(Debug, Clone, Copy)]
pub struct Suspect {
    pub id: RequestId,
    /// Once it has so many tokens, it did not make the shards crash.
    pub passing_len: u32,
}

impl Suspects {
    pub fn is_empty(&self) -> bool {
        self.passing_lens.is_empty()
    }

    pub fn add(&mut self, suspect: Suspect) {
        self.passing_lens.insert(suspect.id, suspect.passing_len);
    }

    pub fn remove(&mut self, id: RequestId) {
        self.passing_lens.remove(&id);
    }

    pub fn has(&self, id: RequestId) -> bool {
        self.passing_lens.contains_key(&id)
    }

    /// The suspect to try now.
    pub fn first(&self) -> Option<Suspect> {
        self.passing_lens.first_key_value().map(|(id, len)| Suspect { id: *id, passing_len: *len })
    }

    /// Whether a request is a suspect that has passed with `len` tokens.
    pub fn has_passed(&self, id: RequestId, len: u32) -> bool {
        self.passing_lens.get(&id).is_some_and(|passing_len| len >= *passing_len)
    }

    /// Panics if a suspect has ended.
    pub fn check(&self, exists: impl Fn(RequestId) -> bool) {
        assert!(self.passing_lens.keys().all(|id| exists(*id)), "a suspect has ended");
    }
}
