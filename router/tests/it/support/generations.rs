//! Greedy requests, and the tokens of their generations.

use penstock_router::engine::generation::Generation;
use penstock_scheduler::{EventKind, NewRequest, SamplingParams};

pub fn greedy(prompt: &[u32], max_new_tokens: u32) -> NewRequest {
    NewRequest::new(prompt.into(), max_new_tokens, SamplingParams::greedy())
}

/// The next so many tokens; the stream must not end before.
pub async fn read(generation: &mut Generation, count: usize) -> Vec<u32> {
    let mut ids = Vec::new();
    while ids.len() < count {
        match generation.next().await.expect("an end is always announced") {
            EventKind::Token(token, _) => ids.push(token.id),
            EventKind::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
    ids
}
