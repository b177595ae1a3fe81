//! Schedulers side by side, one for each replica of the model, and their interface to each other: a request is made
//! once, offered to each, and taken in by one; when that one has lost its shards, it goes on with another.
//!
//! All of them are given the same secret and block size, so that the keys of a request hold for each.

use std::time::Duration;

use crate::backlog::Taken;
use crate::placement::Offer;
use crate::request::{NewRequest, Refused, RequestId};
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;

/// A request whose shards were lost so often while they computed it stays with its scheduler, to be tried alone.
pub(crate) const MAX_LOSSES: u32 = 2;

/// A request that no scheduler has: it just came, or comes from one that lost its shards.
#[derive(Debug)]
pub struct Newcomer(Sequence);

impl Newcomer {
    /// Its id, which it keeps wherever it goes.
    pub fn id(&self) -> RequestId {
        self.0.id()
    }
}

impl Scheduler {
    /// A request as schedulers take it in. Ids are given by who has several schedulers, and count up.
    pub fn newcomer(&self, id: RequestId, request: NewRequest, now: Duration) -> Newcomer {
        Newcomer(Sequence::new(id, request, now, &self.keys, self.config.block_size))
    }

    /// Says which limit a new request would break, if `beside` is taken by other schedulers.
    pub fn check_room(&self, request: &NewRequest, beside: Taken) -> Result<(), Refused> {
        let taken = self.taken() + beside;
        let (current, limit) = (taken.requests, self.config.max_requests);
        if current >= limit {
            return Err(Refused::Overloaded { current, limit });
        }
        self.memory.check_room(request.prompt.len() as u64 + u64::from(request.max_new_tokens))?;
        self.backlog.check_room(request, taken)
    }

    /// The part of the server's limits that its requests use.
    pub fn taken(&self) -> Taken {
        let (queued_tokens, queued_bytes) = self.backlog.size();
        Taken { requests: self.sequences.len() as u32, queued_tokens, queued_bytes }
    }

    /// The work that it would have with a request; `None` if the request does not fit, not even alone.
    pub fn offer(&self, Newcomer(sequence): &Newcomer) -> Option<Offer> {
        self.offer_to(sequence)
    }

    pub(crate) fn offer_to(&self, sequence: &Sequence) -> Option<Offer> {
        self.memory.check_room(sequence.max_len().into()).ok()?;
        let load = self.memory.load();
        Some(Offer {
            len: sequence.len(),
            matched: self.num_matched(sequence),
            pending: self.num_pending(),
            num_others: self.sequences.len(),
            num_slots: self.config.num_slots,
            num_filled: load.used_blocks + load.cached_blocks,
        })
    }

    /// Takes a request in, of which `matched` tokens need not be computed.
    pub fn adopt(&mut self, Newcomer(mut sequence): Newcomer, matched: u32) {
        sequence.keyed_by(&self.keys);
        sequence.arrive(self.memory.num_published(), matched);
        self.backlog.push(&sequence);
        self.adapters.add(sequence.adapter());
        self.sequences.add(sequence);
    }

    /// Lets the requests go that can go on elsewhere, when the shards are lost and so nothing runs. What shards were lost
    /// with more than once is not for others: it stays to be tried alone, if the shards `may_come_back`.
    pub fn evacuate(&mut self, may_come_back: bool) -> Vec<Newcomer> {
        let may_go = |sequence: &&Sequence| !may_come_back || sequence.num_losses() < MAX_LOSSES;
        let ids: Vec<_> = self.sequences.all_waiting().filter(may_go).map(Sequence::id).collect();
        ids.into_iter().filter_map(|id| self.let_go(id)).collect()
    }

    /// Takes a request out that waits.
    pub(crate) fn let_go(&mut self, id: RequestId) -> Option<Newcomer> {
        self.suspects.remove(id);
        let mut sequence = self.sequences.remove(id)?;
        self.backlog.end(&sequence);
        self.adapters.remove(sequence.adapter());
        sequence.leave();
        Some(Newcomer(sequence))
    }

    /// Tokens from its start that are cached, that a running request is about to publish, or that one waits for.
    fn num_matched(&self, sequence: &Sequence) -> u32 {
        let has_twin = self
            .sequences
            .all_waiting()
            .any(|other| other.id() != sequence.id() && other.has_prompt_of(sequence));
        if has_twin && self.config.prefix_caching && sequence.may_share() {
            return sequence.prompt_len() - 1;
        }
        self.memory.num_matched(sequence)
    }

    pub(crate) fn num_pending(&self) -> u64 {
        let waiting = self.sequences.all_waiting().map(|sequence| u64::from(sequence.num_pending()));
        waiting.sum::<u64>() + self.num_pending_of_running()
    }

    pub(crate) fn num_pending_of_running(&self) -> u64 {
        self.sequences.all_running().map(|running| u64::from(running.num_plannable())).sum()
    }

    /// Whether it has this request.
    pub fn contains(&self, id: RequestId) -> bool {
        self.sequences.contains(id)
    }
}
