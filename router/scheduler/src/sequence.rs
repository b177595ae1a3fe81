//! One request on its way through the scheduler: its tokens and its history. They survive preemption and the loss of
//! the shards; what it holds on the device while it runs is in `row`.

use std::sync::Arc;
use std::time::Duration;

use crate::event::EventKind;
use crate::keyed_tokens::KeyedTokens;
use crate::plan::{Admission, BlockId, SlotId, SnapshotId};
use crate::prefix_index::KeyMaker;
use crate::queue::Ticket;
use crate::request::{Failure, FinishReason, NewRequest, PromptScore, RequestId};

/// After so many preemptions a request gets all the memory set aside that it may need, and is not preempted again.
const MAX_PREEMPTIONS: u32 = 3;
/// The cost of an output token for a tenant, in prompt tokens: it takes a step of its own.
const OUTPUT_COST: u64 = 2;
/// Cost at which a tenant's account is brought up to date.
const CHARGE_EVERY: u64 = 32;

/// A request, what is known of its output, and what became of it so far.
#[derive(Debug)]
pub struct Sequence {
    request: NewRequest,
    ticket: Ticket,
    tokens: KeyedTokens,
    /// Plans in flight that compute something for it.
    num_in_flight: u32,
    /// Whether it had a slot before, so that its client was told that it left the queue.
    was_admitted: bool,
    num_preemptions: u32,
    num_replays: u32,
    /// Times that shards were lost while they computed it.
    num_losses: u32,
    /// Tokens that were neither cached nor computed for another when it came to its scheduler.
    num_pending: u32,
    /// The time since when it could be admitted but for memory or a place for its adapter.
    blocked_since: Option<Duration>,
    /// Cost of its output that its tenant has not been charged yet.
    uncharged: u64,
    /// It is not paused for prompts before it has so many output tokens.
    next_pause: u32,
    /// Log probabilities of the prompt, as outcomes bring them.
    prompt_scores: Vec<Option<PromptScore>>,
    /// Blocks that had been published when it came to its scheduler.
    num_published_before: u64,
    /// Whether its scheduler generates it, even if it passes others on.
    is_kept: bool,
}

impl Sequence {
    pub fn new(
        id: RequestId,
        request: NewRequest,
        arrived: Duration,
        maker: &KeyMaker,
        block_size: u32,
    ) -> Self {
        Self {
            ticket: Ticket { id, tenant: Arc::clone(&request.tenant), priority: request.priority, arrived },
            tokens: KeyedTokens::new(&request, maker, block_size),
            request,
            num_in_flight: 0,
            was_admitted: false,
            num_preemptions: 0,
            num_replays: 0,
            num_losses: 0,
            num_pending: 0,
            blocked_since: None,
            uncharged: 0,
            next_pause: 0,
            prompt_scores: Vec::new(),
            num_published_before: 0,
            is_kept: false,
        }
    }

    /// Makes the keys of its blocks with this maker from now on.
    pub fn keyed_by(&mut self, maker: &KeyMaker) {
        self.tokens.keyed_by(&self.request, maker);
    }

    /// It comes to a scheduler that has published so many blocks, and need not compute `matched` tokens of it.
    pub fn arrive(&mut self, num_published: u64, matched: u32) {
        self.num_published_before = num_published;
        self.num_pending = self.len() - matched;
    }

    /// It leaves its scheduler, which has charged its tenant.
    pub fn leave(&mut self) {
        self.uncharged = 0;
        self.blocked_since = None;
        self.is_kept = false;
    }

    /// Its scheduler generates it, even if it passes others on.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Tokens that are to be computed before it generates, while it waits.
    pub fn num_pending(&self) -> u32 {
        self.num_pending
    }

    pub fn id(&self) -> RequestId {
        self.ticket.id
    }

    pub fn request(&self) -> &NewRequest {
        &self.request
    }

    /// Its place in the queue.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    pub fn tenant(&self) -> &Arc<str> {
        &self.ticket.tenant
    }

    pub fn priority(&self) -> i32 {
        self.ticket.priority
    }

    /// The adapter that it uses; `None` is the base model.
    pub fn adapter(&self) -> Option<&Arc<str>> {
        self.request.adapter_id.as_ref()
    }

    pub fn tokens(&self) -> &KeyedTokens {
        &self.tokens
    }

    pub fn prompt_len(&self) -> u32 {
        self.request.prompt.len() as u32
    }

    pub fn len(&self) -> u32 {
        self.tokens.len()
    }

    pub fn num_generated(&self) -> u32 {
        self.len() - self.prompt_len()
    }

    /// Most tokens that it may have at its end.
    pub fn max_len(&self) -> u32 {
        self.prompt_len() + self.request.max_new_tokens
    }

    /// Time since its arrival.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.ticket.arrived)
    }

    /// The time until which it may wait for its first slot.
    pub fn deadline(&self) -> Option<Duration> {
        self.request.queue_timeout.map(|timeout| self.ticket.arrived + timeout)
    }

    /// The failure of a request whose deadline is over.
    pub fn deadline_failure(&self, now: Duration) -> Failure {
        let limit = self.request.queue_timeout.unwrap_or_default();
        Failure::QueueDeadline {
            waited_ms: self.age(now).as_millis() as u64,
            limit_ms: limit.as_millis() as u64,
        }
    }

    /// The time until which the cache is to keep what it wrote, if it ends now; zero is like any other.
    pub fn retain_until(&self, now: Duration) -> Duration {
        let ttl = self.request.cache_ttl;
        if ttl.is_zero() { Duration::ZERO } else { now + ttl }
    }

    /// Whether cached blocks may be used for it: not where every prompt token is to be scored.
    pub fn may_share(&self) -> bool {
        !self.request.sampling.prompt_logprobs || self.num_generated() > 0
    }

    /// Whether what `other` computed for its prompt is what this one needs for its own.
    pub fn has_prompt_of(&self, other: &Self) -> bool {
        self.tokens.prompt_key() == other.tokens.prompt_key()
            && self.tokens.root() == other.tokens.root()
            && self.request.prompt == other.request.prompt
    }

    /// The admission that tells the shards to take it in.
    pub fn admission(
        &self,
        slot: SlotId,
        blocks: &[BlockId],
        snapshot: Option<SnapshotId>,
        eos: &Arc<[u32]>,
    ) -> Admission {
        Admission {
            slot,
            tokens: self.tokens.as_slice().into(),
            prompt_len: self.prompt_len(),
            blocks: blocks.to_vec(),
            sampling: self.request.sampling.clone(),
            suppressed: self.suppressed(eos),
            grammar: self.request.grammar.clone(),
            adapter_id: self.request.adapter_id.clone(),
            predicted: Arc::clone(&self.request.predicted),
            snapshot,
        }
    }

    /// Tokens that must not be chosen before `min_new_tokens`: those that would end it.
    fn suppressed(&self, eos: &Arc<[u32]>) -> Arc<[u32]> {
        let own = &self.request.stop_token_ids;
        if self.request.sampling.min_new_tokens == 0 {
            Arc::default()
        } else if own.is_empty() {
            Arc::clone(eos)
        } else {
            eos.iter().chain(own.iter()).copied().collect()
        }
    }

    /// How many blocks had been published when it arrived.
    pub fn num_published_before(&self) -> u64 {
        self.num_published_before
    }

    pub fn was_admitted(&self) -> bool {
        self.was_admitted
    }

    /// It gets a slot. The event is for its client, the first time.
    pub fn admit(&mut self, cached_tokens: u32, cached_before: u32, now: Duration) -> Option<EventKind> {
        self.blocked_since = None;
        let was_admitted = std::mem::replace(&mut self.was_admitted, true);
        let queued = self.age(now);
        (!was_admitted).then_some(EventKind::Admitted { queued, cached_tokens, cached_before })
    }

    /// There is no memory to admit it, or no place for its adapter; returns for how long that is so.
    pub fn on_blocked(&mut self, now: Duration) -> Duration {
        now.saturating_sub(*self.blocked_since.get_or_insert(now))
    }

    pub fn is_in_flight(&self) -> bool {
        self.num_in_flight > 0
    }

    /// One more plan computes something for it.
    pub fn on_planned(&mut self) {
        self.num_in_flight += 1;
    }

    /// One of those plans is answered.
    pub fn on_answered(&mut self) {
        self.num_in_flight -= 1;
    }

    /// No plan will be answered any more.
    pub fn forget_in_flight(&mut self) {
        self.num_in_flight = 0;
    }

    pub fn on_preempted(&mut self) {
        self.num_preemptions += 1;
    }

    /// Whether it must not be preempted again.
    pub fn is_guaranteed(&self) -> bool {
        self.num_preemptions >= MAX_PREEMPTIONS
    }

    /// It is computed again because the shards were lost, or fails if that was so `limit` times already.
    pub fn replay(&mut self, limit: u32) -> Result<(), Failure> {
        if self.num_replays >= limit {
            return Err(Failure::TooManyReplays { limit });
        }
        self.num_replays += 1;
        Ok(())
    }

    /// The shards were lost while they computed it.
    pub fn on_lost(&mut self) {
        self.num_losses += 1;
    }

    pub fn num_losses(&self) -> u32 {
        self.num_losses
    }

    /// Its stream pauses for prompts in this step, and not again for `num_tokens`.
    pub fn on_paused(&mut self, num_tokens: u32) {
        self.next_pause = self.num_generated() + num_tokens;
    }

    pub fn may_be_paused(&self) -> bool {
        self.num_generated() >= self.next_pause
    }

    /// Takes one sampled token in, and says whether it was the last.
    pub fn push(&mut self, token: u32, eos: &[u32], maker: &KeyMaker) -> Option<FinishReason> {
        self.tokens.push(token, maker);
        self.uncharged += OUTPUT_COST;
        // Length first: clients of TGI see `length` when the last token allowed is an end of sequence, too.
        if self.len() >= self.max_len() {
            return Some(FinishReason::Length);
        }
        if !self.request.ignore_eos && eos.contains(&token) {
            return Some(FinishReason::EndOfSequence);
        }
        self.request.stop_token_ids.contains(&token).then_some(FinishReason::StopToken)
    }

    /// The cost that its tenant is to be charged now; `None` until there is enough for it.
    pub fn take_due_cost(&mut self) -> Option<u64> {
        (self.uncharged >= CHARGE_EVERY).then(|| std::mem::take(&mut self.uncharged))
    }

    /// The cost that its tenant is still to be charged when the sequence ends.
    pub fn uncharged(&self) -> u64 {
        self.uncharged
    }

    /// All log probabilities of the prompt, before its first output token, if they were asked for. The first token has
    /// none.
    pub fn take_prompt_scores(&mut self) -> Option<Vec<Option<PromptScore>>> {
        if self.num_generated() > 0 || !self.request.sampling.prompt_logprobs {
            return None;
        }
        // A prompt of one token never got any.
        self.prompt_scores.resize(self.request.prompt.len(), None);
        Some(std::mem::take(&mut self.prompt_scores))
    }

    /// Keeps the log probabilities of prompt positions `start ..`.
    pub fn keep_prompt_scores(&mut self, start: u32, scores: Vec<PromptScore>) {
        self.prompt_scores.resize(self.request.prompt.len(), None);
        for (kept, score) in self.prompt_scores.iter_mut().skip(start as usize).zip(scores) {
            *kept = Some(score);
        }
    }
}
