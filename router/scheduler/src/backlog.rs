//! The requests that wait: their order, how much they are together, and when each has waited too long.

use std::collections::BTreeSet;
use std::iter::Sum;
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use crate::config::SchedulerConfig;
use crate::queue::FairQueue;
use crate::request::{NewRequest, Refused, RequestId};
use crate::sequence::Sequence;

/// The part of a server's limits that requests use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Requests waiting and running.
    pub requests: u32,
    /// Prompt tokens waiting.
    pub queued_tokens: u64,
    /// Bytes of requests waiting.
    pub queued_bytes: usize,
}

impl Add for Taken {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            queued_tokens: self.queued_tokens + other.queued_tokens,
            queued_bytes: self.queued_bytes + other.queued_bytes,
        }
    }
}

impl Sum for Taken {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

/// The backlog. Tokens, bytes and deadlines are those of requests that never had a slot; one that was preempted or
/// replayed waits without them.
#[derive(Debug)]
pub struct Backlog {
    queue: FairQueue,
    num_tokens: u64,
    num_bytes: usize,
    deadlines: BTreeSet<(Duration, RequestId)>,
    max_tokens: u64,
    max_bytes: usize,
}

impl Backlog {
    /// An empty backlog with the limits and tenants' weights of `config`.
    pub fn new(config: &SchedulerConfig) -> Self {
        Self {
            queue: FairQueue::new(config.tenant_weights.clone()),
            num_tokens: 0,
            num_bytes: 0,
            deadlines: BTreeSet::new(),
            max_tokens: config.max_queued_tokens,
            max_bytes: config.max_queued_bytes,
        }
    }

    /// Refuses a request that would pass a limit, where so much is taken already.
    pub fn check_room(&self, request: &NewRequest, taken: Taken) -> Result<(), Refused> {
        let (queued, given, limit) = (taken.queued_tokens, request.prompt.len() as u64, self.max_tokens);
        if queued + given > limit {
            return Err(Refused::QueueFull { queued, given, limit });
        }
        let (queued, given, limit) = (taken.queued_bytes, request.num_bytes(), self.max_bytes);
        if queued.saturating_add(given) > limit {
            return Err(Refused::QueueTooLarge { queued, given, limit });
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Tokens and bytes that wait.
    pub fn size(&self) -> (u64, usize) {
        (self.num_tokens, self.num_bytes)
    }

    /// A request waits that comes from outside: it is new, or ran elsewhere.
    pub fn push(&mut self, sequence: &Sequence) {
        self.queue.push(sequence.ticket());
        if sequence.was_admitted() {
            self.queue.remove(sequence.ticket());
            return self.push_resuming(sequence.id());
        }
        self.num_tokens += u64::from(sequence.prompt_len());
        self.num_bytes += sequence.request().num_bytes();
        self.deadlines.extend(sequence.deadline().map(|deadline| (deadline, sequence.id())));
    }

    /// A request that ran waits again, before all that never did.
    pub fn push_resuming(&mut self, id: RequestId) {
        self.queue.push_resuming(id);
    }

    /// The requests in the order in which they should run.
    pub fn iter(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.queue.iter()
    }

    /// A request waits no longer, if it did.
    pub fn remove(&mut self, sequence: &Sequence) {
        if self.queue.remove(sequence.ticket()) && !sequence.was_admitted() {
            self.num_tokens -= u64::from(sequence.prompt_len());
            self.num_bytes -= sequence.request().num_bytes();
            if let Some(deadline) = sequence.deadline() {
                self.deadlines.remove(&(deadline, sequence.id()));
            }
        }
    }

    /// A request has ended, whether it waited or ran.
    pub fn end(&mut self, sequence: &Sequence) {
        self.remove(sequence);
        self.charge(sequence.tenant(), sequence.uncharged());
        self.queue.on_ended(sequence.tenant());
    }

    /// A tenant was served so many tokens.
    pub fn charge(&mut self, tenant: &Arc<str>, tokens: u64) {
        self.queue.charge(tenant, tokens);
    }

    /// Takes out a deadline that is over.
    pub fn pop_expired(&mut self, now: Duration) -> Option<RequestId> {
        let first = self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        let (_, id) = *first;
        self.deadlines.pop_first();
        Some(id)
    }

    /// Requests that wait, by tenant.
    pub fn waiting_by_tenant(&self) -> impl Iterator<Item = (&str, usize)> {
        self.queue.waiting_by_tenant()
    }

    /// Panics unless it holds the sequences in `waiting`, and counts those of them that never had a slot.
    pub fn check<'a>(&self, waiting: impl Iterator<Item = &'a Sequence> + Clone) {
        self.queue.check();
        assert_eq!(self.queue.len(), waiting.clone().count(), "the queue holds others than those that wait");
        let new = waiting.filter(|sequence| !sequence.was_admitted());
        let num_tokens: u64 = new.clone().map(|sequence| u64::from(sequence.prompt_len())).sum();
        let num_bytes: usize = new.clone().map(|sequence| sequence.request().num_bytes()).sum();
        assert_eq!(
            (self.num_tokens, self.num_bytes),
            (num_tokens, num_bytes),
            "queued tokens or bytes are lost"
        );
        let num_deadlines = new.filter(|sequence| sequence.deadline().is_some()).count();
        assert_eq!(self.deadlines.len(), num_deadlines, "deadlines are lost");
    }
}
