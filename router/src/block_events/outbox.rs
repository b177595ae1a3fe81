//! The reports of the engine loop about its caches, numbered and put into a bounded queue. It never waits: a report
//! that does not fit is dropped, and subscribers are told to forget what they know of that replica.

use std::collections::BTreeSet;

use penstock_scheduler::{CacheEvent, Totals};
use tokio::sync::mpsc;
use tracing::warn;

use super::batch::Batch;
use crate::base::unix_time::unix_time;
use crate::observe::metrics::BlockEventCounters;
use crate::observe::observer::{Observer, ReplicaLevels, StepSummary};

/// The engine loop's end of the queue.
#[derive(Debug)]
pub struct Outbox {
    queue: mpsc::Sender<Batch>,
    counters: BlockEventCounters,
    next_number: u64,
    /// Replicas that subscribers were told about.
    known: BTreeSet<usize>,
    /// Replicas of which subscribers have to forget everything before they are told more.
    to_clear: BTreeSet<usize>,
    /// Whether the log has it that some were dropped. The metrics count how many.
    has_warned: bool,
}

impl Outbox {
    pub(super) fn new(queue: mpsc::Sender<Batch>, counters: BlockEventCounters) -> Self {
        Self {
            queue,
            counters,
            next_number: 0,
            known: BTreeSet::new(),
            to_clear: BTreeSet::new(),
            has_warned: false,
        }
    }

    /// Has subscribers forget a replica before its first event: they may know it from a server before this one.
    fn meet(&mut self, replica: usize) {
        if self.known.insert(replica) {
            self.to_clear.insert(replica);
        }
    }

    fn send(&mut self, replica: usize, mut events: Vec<CacheEvent>) {
        if self.to_clear.remove(&replica) {
            events.insert(0, CacheEvent::Cleared);
        }
        let batch = Batch { number: self.next_number, time: unix_time(), replica, events };
        // Also that of a dropped batch is used up: the gap tells subscribers.
        self.next_number += 1;
        if self.queue.try_send(batch).is_ok() {
            self.counters.published.increment(1);
        } else {
            self.counters.dropped.increment(1);
            self.to_clear.insert(replica);
            if !std::mem::replace(&mut self.has_warned, true) {
                warn!(replica, "block events are dropped: they come faster than they are published");
            }
        }
    }
}

impl Observer for Outbox {
    fn on_step(&mut self, _: &StepSummary) {}

    fn on_cache_events(&mut self, replica: usize, events: Vec<CacheEvent>) {
        self.meet(replica);
        self.send(replica, events);
    }

    fn on_levels(&mut self, replicas: &[ReplicaLevels]) {
        replicas.iter().for_each(|levels| self.meet(levels.replica));
        // One number is used up for all that cannot be told yet, not one for each try.
        if self.queue.capacity() > 0 {
            for replica in self.to_clear.clone() {
                self.send(replica, Vec::new());
            }
        }
    }

    fn on_departed(&mut self, _: Totals, replicas: &[usize]) {
        for replica in replicas {
            self.known.remove(replica);
            self.to_clear.insert(*replica);
            self.send(*replica, Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics::Counter;
    use penstock_scheduler::{BlockKey, StoredBlock};

    use super::*;

    fn outbox(capacity: usize) -> (Outbox, mpsc::Receiver<Batch>) {
        let (queue, batches) = mpsc::channel(capacity);
        let counters = BlockEventCounters { published: Counter::noop(), dropped: Counter::noop() };
        (Outbox::new(queue, counters), batches)
    }

    fn received(batches: &mut mpsc::Receiver<Batch>) -> Vec<(u64, usize, usize, bool)> {
        let told = |batch: Batch| {
            let clears = batch.events.first() == Some(&CacheEvent::Cleared);
            (batch.number, batch.replica, batch.events.len(), clears)
        };
        std::iter::from_fn(|| batches.try_recv().ok()).map(told).collect()
    }

    fn levels(replicas: &[usize]) -> Vec<ReplicaLevels> {
        let level = |replica: &usize| ReplicaLevels { replica: *replica, ..ReplicaLevels::default() };
        replicas.iter().map(level).collect()
    }

    fn events(count: usize) -> Vec<CacheEvent> {
        let key = BlockKey::from_value(1);
        vec![CacheEvent::Stored(StoredBlock { key, parent: None, tokens: [1].into(), adapter: None }); count]
    }

    #[test]
    fn the_first_that_is_told_of_a_replica_is_that_nothing_is_known() {
        let (mut outbox, mut batches) = outbox(8);
        outbox.on_levels(&levels(&[0]));
        outbox.on_levels(&levels(&[0]));
        outbox.on_cache_events(0, events(1));
        outbox.on_cache_events(1, events(1));
        outbox.on_cache_events(1, events(1));
        let expected = [(0, 0, 1, true), (1, 0, 1, false), (2, 1, 2, true), (3, 1, 1, false)];
        assert_eq!(received(&mut batches), expected);
    }

    #[test]
    fn what_does_not_fit_leaves_a_gap_and_is_followed_by_a_new_beginning() {
        let (mut outbox, mut batches) = outbox(2);
        (0..5).for_each(|_| outbox.on_cache_events(0, events(1)));
        outbox.on_levels(&levels(&[0]));
        assert_eq!(received(&mut batches), [(0, 0, 2, true), (1, 0, 1, false)]);
        outbox.on_levels(&levels(&[0]));
        outbox.on_cache_events(0, events(1));
        assert_eq!(received(&mut batches), [(5, 0, 1, true), (6, 0, 1, false)]);
    }

    #[test]
    fn one_replica_too_many_events_are_not_the_others_loss() {
        let (mut outbox, mut batches) = outbox(1);
        outbox.on_cache_events(0, events(1));
        outbox.on_cache_events(1, events(1));
        assert_eq!(received(&mut batches), [(0, 0, 2, true)]);
        outbox.on_cache_events(0, events(1));
        assert_eq!(received(&mut batches), [(2, 0, 1, false)]);
        outbox.on_cache_events(1, events(1));
        assert_eq!(received(&mut batches), [(3, 1, 2, true)]);
    }

    #[test]
    fn a_replica_that_leaves_holds_nothing_and_its_number_begins_anew() {
        let (mut outbox, mut batches) = outbox(8);
        outbox.on_cache_events(3, events(1));
        outbox.on_departed(Totals::default(), &[3]);
        outbox.on_levels(&levels(&[]));
        outbox.on_cache_events(3, events(1));
        assert_eq!(received(&mut batches), [(0, 3, 2, true), (1, 3, 1, true), (2, 3, 2, true)]);
    }
}
