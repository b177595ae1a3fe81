//! Blocks that running sequences are about to publish: others wait for them instead of computing them again.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::prefix_index::BlockKey;
use crate::request::RequestId;

type Owners = HashMap<BlockKey, RequestId, FixedState>;

/// The promises, each of one running sequence.
#[derive(Debug, Default)]
pub struct Promises {
    /// Full blocks that will be published.
    blocks: Owners,
    /// Blocks behind which the state will be kept.
    snapshots: Owners,
    /// Whole prompts: a sequence with the same one copies the last block.
    prompts: Owners,
}

impl Promises {
    /// A sequence begins to run. What another has promised already stays the other's.
    pub fn make(&mut self, id: RequestId, blocks: &[BlockKey], prompt: BlockKey) {
        self.make_blocks(id, blocks);
        self.prompts.entry(prompt).or_insert(id);
    }

    /// These blocks come for a sequence from another scheduler.
    pub fn make_blocks(&mut self, id: RequestId, blocks: &[BlockKey]) {
        for key in blocks {
            self.blocks.entry(*key).or_insert(id);
        }
    }

    /// A running sequence will have its state kept behind one of its blocks.
    pub fn make_snapshot(&mut self, id: RequestId, block: BlockKey) {
        self.snapshots.entry(block).or_insert(id);
    }

    /// The sequence published a block, or it never will.
    pub fn settle(&mut self, id: RequestId, block: BlockKey) {
        remove_if_owned(&mut self.blocks, block, id);
        remove_if_owned(&mut self.snapshots, block, id);
    }

    /// The sequence no longer runs: what it has not published will not come.
    pub fn withdraw(&mut self, id: RequestId, blocks: &[BlockKey], prompt: BlockKey) {
        for key in blocks {
            self.settle(id, *key);
        }
        remove_if_owned(&mut self.prompts, prompt, id);
    }

    /// The sequence that runs or comes and will publish a block.
    pub fn owner_of_block(&self, key: BlockKey) -> Option<RequestId> {
        self.blocks.get(&key).copied()
    }

    pub fn has_snapshot(&self, key: BlockKey) -> bool {
        self.snapshots.contains_key(&key)
    }

    /// A running sequence with this whole prompt.
    pub fn owner_of_prompt(&self, key: BlockKey) -> Option<RequestId> {
        self.prompts.get(&key).copied()
    }

    /// Panics if a sequence that neither runs nor comes has promised anything.
    pub fn check(&self, runs: impl Fn(RequestId) -> bool) {
        let mut owners = self.blocks.values().chain(self.snapshots.values()).chain(self.prompts.values());
        assert!(owners.all(|id| runs(*id)), "a sequence that does not run promises blocks");
    }
}

/// Another sequence may have made the same promise since.
fn remove_if_owned(owners: &mut Owners, key: BlockKey, id: RequestId) {
    if owners.get(&key) == Some(&id) {
        owners.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix_index::KeyMaker;

    #[test]
    fn a_promise_that_another_made_before_stays_the_others() {
        let key = KeyMaker::new(1).root("", None);
        let mut promises = Promises::default();
        promises.make(RequestId(1), &[key], key);
        promises.make(RequestId(2), &[key], key);
        promises.withdraw(RequestId(2), &[key], key);
        assert_eq!(
            (promises.owner_of_block(key), promises.owner_of_prompt(key)),
            (Some(RequestId(1)), Some(RequestId(1)))
        );
        promises.settle(RequestId(1), key);
        assert_eq!((promises.owner_of_block(key), promises.owner_of_prompt(key)), (None, Some(RequestId(1))));
    }
}
