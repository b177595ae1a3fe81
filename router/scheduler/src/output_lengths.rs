//! How long outputs become: a running mean, by which it is guessed how much memory running sequences will still want.

use crate::sequence::Sequence;

/// Assumed before any output has ended.
const INITIAL_MEAN: f64 = 64.0;
/// Weight of the newest output in the mean.
const GAIN: f64 = 0.05;

/// The running mean of output lengths.
#[derive(Debug)]
pub struct OutputLengths {
    mean: f64,
}

impl OutputLengths {
    pub fn new() -> Self {
        Self { mean: INITIAL_MEAN }
    }

    /// An output ended with so many tokens.
    pub fn observe(&mut self, len: u32) {
        self.mean += GAIN * (f64::from(len) - self.mean);
    }

    /// The length that a sequence will probably have at its end, but at least `at_least` more than now.
    pub fn expected_len(&self, sequence: &Sequence, at_least: u32) -> u32 {
        let more = (self.mean as u32).saturating_sub(sequence.num_generated()).max(at_least);
        sequence.len().saturating_add(more).min(sequence.max_len())
    }
}
