//! The probable content of one upstream's cache: the keys of the last chunks of prompts that were sent there. It is a
//! guess, because nobody tells what the upstream has dropped, and it needs nothing of the upstream.

use std::collections::{HashMap, VecDeque};

/// The key of a chunk of a prompt and of all chunks before it.
pub type ChunkKey = u64;

/// Keys of chunks, those that were used last. Memory is bounded by the capacity.
#[derive(Debug)]
pub struct PrefixIndex {
    capacity: usize,
    /// The last use of each.
    used: HashMap<ChunkKey, u64>,
    /// All uses in their order, those that are not the last of their key among them.
    uses: VecDeque<(ChunkKey, u64)>,
    num_uses: u64,
}

impl PrefixIndex {
    /// An empty index of at most so many chunks.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, used: HashMap::new(), uses: VecDeque::new(), num_uses: 0 }
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// How many chunks at the beginning of a prompt are there.
    pub fn matched(&self, prompt: &[ChunkKey]) -> usize {
        prompt.iter().take_while(|key| self.used.contains_key(key)).count()
    }

    /// The upstream computes this prompt. What was used longest ago is forgotten for it; of a prompt that is longer than the
    /// capacity, its end.
    pub fn insert(&mut self, prompt: &[ChunkKey]) {
        // The beginning last: a chunk is of no use without those before it.
        prompt.iter().take(self.capacity).rev().for_each(|key| self.touch(*key));
        self.shrink();
    }

    /// Changes the capacity.
    pub fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.shrink();
    }

    /// Forgets everything: the upstream has lost its cache.
    pub fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    fn touch(&mut self, key: ChunkKey) {
        self.num_uses += 1;
        self.used.insert(key, self.num_uses);
        self.uses.push_back((key, self.num_uses));
    }

    fn shrink(&mut self) {
        while self.used.len() > self.capacity
            && let Some((key, use_number)) = self.uses.pop_front()
        {
            if self.used.get(&key) == Some(&use_number) {
                self.used.remove(&key);
            }
        }
        // Each such pass is paid for by as many uses as it drops.
        if self.uses.len() > 2 * self.capacity {
            self.uses.retain(|(key, use_number)| self.used.get(key) == Some(use_number));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_prompt_is_found_as_far_as_it_was_sent() {
        let mut index = PrefixIndex::new(10);
        index.insert(&[1, 2, 3]);
        assert_eq!(index.matched(&[1, 2, 3, 4]), 3);
        assert_eq!(index.matched(&[1, 2]), 2);
        assert_eq!(index.matched(&[9, 2]), 0);
        assert_eq!(index.matched(&[1, 9, 3]), 1);
        assert_eq!(index.matched(&[]), 0);
    }

    #[test]
    fn what_was_used_longest_ago_is_forgotten_its_end_first() {
        let mut index = PrefixIndex::new(4);
        index.insert(&[1, 2, 3]);
        index.insert(&[7, 8, 9]);
        assert_eq!((index.matched(&[1, 2, 3]), index.matched(&[7, 8, 9])), (1, 3));
        index.insert(&[1]);
        index.insert(&[20, 21]);
        assert_eq!((index.matched(&[1]), index.matched(&[7, 8, 9]), index.matched(&[20, 21])), (1, 1, 2));
    }

    #[test]
    fn of_a_prompt_that_is_too_long_the_beginning_is_kept() {
        let mut index = PrefixIndex::new(3);
        index.insert(&[1, 2, 3, 4, 5]);
        assert_eq!((index.matched(&[1, 2, 3, 4, 5]), index.len()), (3, 3));
        index.resize(2);
        assert_eq!(index.matched(&[1, 2, 3]), 2);
        index.clear();
        assert_eq!(index.len(), 0);
        index.insert(&[1, 2, 3]);
        assert_eq!(index.len(), 2, "the capacity stays");
    }

    #[test]
    fn an_index_without_room_holds_nothing() {
        let mut index = PrefixIndex::new(0);
        index.insert(&[1, 2]);
        assert_eq!((index.len(), index.matched(&[1])), (0, 0));
    }

    proptest! {
        /// Against a list of all uses: the same chunks are known, and memory is bounded, whatever comes.
        #[test]
        fn it_holds_the_chunks_that_were_used_last(
            capacity in 0_usize..9,
            prompts in prop::collection::vec(prop::collection::vec(0_u64..12, 0..12), 0..60),
        ) {
            let (mut index, mut latest) = (PrefixIndex::new(capacity), Vec::<u64>::new());
            for prompt in &prompts {
                index.insert(prompt);
                for key in prompt.iter().take(capacity).rev() {
                    latest.retain(|known| known != key);
                    latest.push(*key);
                }
                latest.drain(..latest.len().saturating_sub(capacity));
                for key in 0..12 {
                    prop_assert_eq!(index.matched(&[key]) == 1, latest.contains(&key));
                }
                prop_assert!(index.len() <= capacity);
                prop_assert!(index.uses.len() <= 2 * capacity);
            }
        }
    }
}
