//! One request on its way through the scheduler: its tokens, and while it runs, its slot and blocks.

use std::sync::Arc;
use std::time::Duration;

use crate::plan::{Admission, BlockId, SlotId};
use crate::prefix_index::{BlockKey, KeyMaker};
use crate::queue::Ticket;
use crate::request::{FinishReason, NewRequest, PromptScore, RequestId};

/// A request and what is known of its output. Tokens survive preemption and the loss of the shards; `row` does not.
#[derive(Debug)]
pub struct Sequence {
    pub request: NewRequest,
    pub ticket: Ticket,
    /// The prompt, then the tokens that outcomes confirmed.
    pub tokens: Vec<u32>,
    /// Cache keys of the full blocks of `tokens`, behind `root`.
    pub keys: Vec<BlockKey>,
    pub root: BlockKey,
    /// Key of the whole prompt, by which others with the same one find it.
    pub prompt_key: BlockKey,
    /// Set while it runs.
    pub row: Option<Row>,
    /// Plans in flight that compute something for it.
    pub num_in_flight: u32,
    /// Whether its client was told that it left the queue.
    pub announced: bool,
    /// Times it had to give its memory back.
    pub num_preemptions: u32,
    /// Times it was computed again because the shards were lost.
    pub num_replays: u32,
    /// Since when it is first in line and does not fit.
    pub blocked_since: Option<Duration>,
    /// Output tokens not yet charged to its tenant.
    pub uncharged: u64,
    /// Output tokens that it gets before it is to pause again for prompts.
    pub rested_at: u32,
    /// Log probabilities of the prompt, as spans bring them in.
    pub prompt_scores: Vec<Option<PromptScore>>,
}

/// What a running sequence holds on the device.
#[derive(Debug)]
pub struct Row {
    pub slot: SlotId,
    /// In order of position, those given back among them.
    pub blocks: Vec<BlockId>,
    /// Blocks from the start that were given back: they are behind the window.
    pub num_behind: usize,
    /// Positions whose KV is computed by plans sent so far.
    pub planned: u32,
    /// Positions whose KV is computed by plans answered so far.
    pub confirmed: u32,
    /// Blocks from the start that are shared or published.
    pub num_published: usize,
    /// Tokens in the slot once those plans are done: the confirmed ones and one for each sample in flight.
    pub len: u32,
    /// The last plan that touches it.
    pub last_step: u64,
    /// Blocks set aside for it, because it was preempted often enough.
    pub reserved: usize,
}

impl Row {
    /// The blocks that are still its own.
    pub fn held(&self) -> &[BlockId] {
        &self.blocks[self.num_behind..]
    }

    /// Positions behind the planned ones that there are blocks for.
    pub fn room(&self, block_size: u32) -> u32 {
        self.blocks.len() as u32 * block_size - self.planned
    }
}

impl Sequence {
    pub fn new(
        id: RequestId,
        request: NewRequest,
        arrived: Duration,
        maker: &KeyMaker,
        block_size: u32,
    ) -> Self {
        let root = maker.root(&request.cache_salt, request.adapter_id.as_deref());
        let ticket = Ticket { id, tenant: Arc::clone(&request.tenant), priority: request.priority, arrived };
        let mut sequence = Self {
            tokens: request.prompt.to_vec(),
            request,
            ticket,
            keys: Vec::new(),
            root,
            prompt_key: root,
            row: None,
            num_in_flight: 0,
            announced: false,
            num_preemptions: 0,
            num_replays: 0,
            blocked_since: None,
            uncharged: 0,
            rested_at: 0,
            prompt_scores: Vec::new(),
        };
        sequence.extend_keys(maker, block_size);
        let tail = sequence.tokens.chunks_exact(block_size as usize).remainder();
        sequence.prompt_key = maker.child(sequence.last_key(), tail);
        sequence
    }

    pub fn prompt_len(&self) -> u32 {
        self.request.prompt.len() as u32
    }

    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub fn num_generated(&self) -> u32 {
        self.len() - self.prompt_len()
    }

    /// How long the cache is to keep what it wrote, if it is now.
    pub fn retain_until(&self, now: Duration) -> Duration {
        let ttl = self.request.cache_ttl;
        if ttl.is_zero() { Duration::ZERO } else { now + ttl }
    }

    /// Longest it may become.
    pub fn max_len(&self) -> u32 {
        self.prompt_len() + self.request.max_new_tokens
    }

    /// Token positions that the next plan could compute; 0 when it is complete but for outcomes in flight.
    pub fn num_plannable(&self) -> u32 {
        match &self.row {
            // The last token of a complete sequence is never fed back.
            Some(row) if row.len < self.max_len() => row.len - row.planned,
            _ => 0,
        }
    }

    /// Whether what others computed may stand for its own: not where every prompt token is to be scored.
    pub fn may_share(&self) -> bool {
        !self.request.sampling.prompt_logprobs || self.num_generated() > 0
    }

    /// Takes one sampled token in and says whether it was the last.
    pub fn push(&mut self, token: u32, eos: &[u32]) -> Option<FinishReason> {
        self.tokens.push(token);
        // Length first: clients of TGI see `length` when the last token allowed is an end of sequence, too.
        if self.len() >= self.max_len() {
            return Some(FinishReason::Length);
        }
        let ended = !self.request.ignore_eos && eos.contains(&token);
        ended.then_some(FinishReason::EndOfSequence)
    }

    /// Computes the keys of blocks that became full.
    pub fn extend_keys(&mut self, maker: &KeyMaker, block_size: u32) {
        for block in self.tokens.chunks_exact(block_size as usize).skip(self.keys.len()) {
            let parent = self.keys.last().copied().unwrap_or(self.root);
            self.keys.push(maker.child(parent, block));
        }
    }

    fn last_key(&self) -> BlockKey {
        self.keys.last().copied().unwrap_or(self.root)
    }

    /// All log probabilities of the prompt; the first token has none.
    pub fn take_prompt_scores(&mut self) -> Vec<Option<PromptScore>> {
        // A prompt of one token never got any.
        self.prompt_scores.resize(self.request.prompt.len(), None);
        std::mem::take(&mut self.prompt_scores)
    }

    /// Keeps the log probabilities of prompt positions `start ..`.
    pub fn keep_prompt_scores(&mut self, start: u32, scores: Vec<PromptScore>) {
        self.prompt_scores.resize(self.request.prompt.len(), None);
        for (kept, score) in self.prompt_scores.iter_mut().skip(start as usize).zip(scores) {
            *kept = Some(score);
        }
    }

    /// What the shards need to take it in.
    pub fn admission(&self, slot: SlotId, blocks: &[BlockId], eos: &Arc<[u32]>) -> Admission {
        let suppress = self.request.sampling.min_new_tokens > 0;
        Admission {
            slot,
            tokens: self.tokens.as_slice().into(),
            prompt_len: self.prompt_len(),
            blocks: blocks.to_vec(),
            sampling: self.request.sampling.clone(),
            suppressed: if suppress { Arc::clone(eos) } else { Arc::default() },
            grammar: self.request.grammar.clone(),
            adapter_id: self.request.adapter_id.clone(),
        }
    }
}
