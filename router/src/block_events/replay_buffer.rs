//! The last messages, for subscribers that missed some. It is bounded by their number and by their bytes.

use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that all messages together may have.
const MAX_BYTES: usize = 64 << 20;

/// A message without its topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub number: u64,
    pub payload: Arc<[u8]>,
}

/// Oldest first; numbers rise, and some may be missing.
#[derive(Debug)]
pub struct ReplayBuffer {
    kept: VecDeque<Kept>,
    max_messages: usize,
    num_bytes: usize,
}

impl ReplayBuffer {
    pub fn new(max_messages: u32) -> Self {
        Self { kept: VecDeque::new(), max_messages: max_messages as usize, num_bytes: 0 }
    }

    /// Keeps one more, and as many of those before it as there is room for.
    pub fn push(&mut self, number: u64, payload: Arc<[u8]>) {
        self.num_bytes += payload.len();
        self.kept.push_back(Kept { number, payload });
        while self.kept.len() > self.max_messages || self.num_bytes > MAX_BYTES {
            let Some(oldest) = self.kept.pop_front() else { return };
            self.num_bytes -= oldest.payload.len();
        }
    }

    /// The first message with this number or a higher one.
    pub fn next(&self, number: u64) -> Option<Kept> {
        self.kept.get(self.kept.partition_point(|kept| kept.number < number)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(buffer: &ReplayBuffer, start: u64) -> Vec<u64> {
        let mut next = start;
        let mut numbers = Vec::new();
        while let Some(kept) = buffer.next(next) {
            numbers.push(kept.number);
            next = kept.number + 1;
        }
        numbers
    }

    #[test]
    fn the_oldest_go_first_and_a_gap_is_passed_over() {
        let mut buffer = ReplayBuffer::new(3);
        assert_eq!(numbers(&buffer, 0), [0; 0]);
        for number in [0, 1, 3, 4] {
            buffer.push(number, [number as u8].into());
        }
        assert_eq!(numbers(&buffer, 0), [1, 3, 4]);
        assert_eq!(numbers(&buffer, 2), [3, 4]);
        assert_eq!(numbers(&buffer, 5), [0; 0]);
        assert_eq!(*buffer.next(4).unwrap().payload, [4]);
    }

    #[test]
    fn large_messages_leave_room_for_fewer() {
        let mut buffer = ReplayBuffer::new(100);
        let payload: Arc<[u8]> = vec![0; MAX_BYTES / 4 + 1].into();
        (0..10).for_each(|number| buffer.push(number, Arc::clone(&payload)));
        assert_eq!(numbers(&buffer, 0), [7, 8, 9]);
    }
}
