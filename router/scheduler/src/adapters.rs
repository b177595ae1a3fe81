//! The places for adapters: running sequences may use only so many different ones at a time. Who may take a place is
//! decided here; requests whose adapter has none wait, and others pass them.
//!
//! An adapter has its place while a running sequence uses it. Where there are fewer places than adapters asked for,
//! new requests of the adapters that have places are admitted as they come, so that work is grouped by adapter; but a
//! request that waits for a place does so for a bounded time: then the adapter that has had its place the longest
//! gets no new sequences, and the place that it leaves is kept for the request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long a request waits for a place before one is cleared for it.
pub const MAX_WITHOUT_PLACE: Duration = Duration::from_secs(1);
/// How long an adapter has its place at least, if it has requests: else places would change with every request.
const MIN_STAY: Duration = Duration::from_secs(1);

/// The use of an adapter by sequences.
#[derive(Debug, Default)]
struct Use {
    /// Sequences that wait or run.
    num_sequences: usize,
    num_running: usize,
    /// When it got its place.
    since: Duration,
}

/// Which adapters are used, and which have a place.
#[derive(Debug)]
pub struct AdapterPlaces {
    max: usize,
    used: BTreeMap<Arc<str>, Use>,
    num_placed: usize,
}

/// Which sequences may be admitted in one plan, by their adapters.
#[derive(Debug, Default)]
pub struct Gate {
    /// The adapter that gets no new sequences.
    closed: Option<Arc<str>>,
    /// The adapter for which the next free place is kept.
    kept_for: Option<Arc<str>>,
}

impl AdapterPlaces {
    /// `max` places, all free.
    pub fn new(max: u32) -> Self {
        Self { max: max as usize, used: BTreeMap::new(), num_placed: 0 }
    }

    /// A sequence arrives.
    pub fn add(&mut self, adapter: Option<&Arc<str>>) {
        if let Some(adapter) = adapter {
            self.used.entry(Arc::clone(adapter)).or_default().num_sequences += 1;
        }
    }

    /// A sequence that does not run has ended.
    pub fn remove(&mut self, adapter: Option<&Arc<str>>) {
        let Some(adapter) = adapter else { return };
        if let Some(it) = self.used.get_mut(adapter) {
            it.num_sequences -= 1;
            if it.num_sequences == 0 {
                self.used.remove(adapter);
            }
        }
    }

    /// A sequence begins to run.
    pub fn enter(&mut self, adapter: Option<&Arc<str>>, now: Duration) {
        let Some(it) = adapter.and_then(|adapter| self.used.get_mut(adapter)) else { return };
        if it.num_running == 0 {
            self.num_placed += 1;
            it.since = now;
        }
        it.num_running += 1;
    }

    /// A sequence runs no longer.
    pub fn leave(&mut self, adapter: Option<&Arc<str>>) {
        let Some(it) = adapter.and_then(|adapter| self.used.get_mut(adapter)) else { return };
        it.num_running -= 1;
        if it.num_running == 0 {
            self.num_placed -= 1;
        }
    }

    /// Whether more adapters are asked for than there are places.
    pub fn are_short(&self) -> bool {
        self.used.len() > self.max
    }

    /// Whether a sequence of this adapter runs.
    pub fn has(&self, adapter: &str) -> bool {
        self.used.get(adapter).is_some_and(|it| it.num_running > 0)
    }

    /// Whether a sequence with this adapter may run.
    pub fn may_enter(&self, adapter: Option<&Arc<str>>, gate: &Gate) -> bool {
        let Some(adapter) = adapter else { return true };
        if self.has(adapter) {
            return gate.closed.as_ref() != Some(adapter);
        }
        let kept = gate.kept_for.as_ref().filter(|kept| *kept != adapter && !self.has(kept));
        self.num_placed + usize::from(kept.is_some()) < self.max
    }

    /// Clears a place for the adapter of a request that has waited long enough.
    pub fn gate_for(&self, adapter: &Arc<str>, now: Duration) -> Gate {
        let placed = self.used.iter().filter(|(_, it)| it.num_running > 0);
        let stayed = placed.filter(|(_, it)| it.since + MIN_STAY <= now);
        let oldest = stayed.min_by_key(|(_, it)| it.since).filter(|_| self.num_placed >= self.max);
        Gate { closed: oldest.map(|(name, _)| Arc::clone(name)), kept_for: Some(Arc::clone(adapter)) }
    }

    /// Panics unless these are the adapters of all sequences and of those that run.
    pub fn check<'a>(
        &self,
        all: impl Iterator<Item = &'a Arc<str>>,
        running: impl Iterator<Item = &'a Arc<str>>,
    ) {
        let mut counts: BTreeMap<&Arc<str>, (usize, usize)> = BTreeMap::new();
        all.for_each(|adapter| counts.entry(adapter).or_default().0 += 1);
        running.for_each(|adapter| counts.entry(adapter).or_default().1 += 1);
        let own = self.used.iter().map(|(name, it)| (name, (it.num_sequences, it.num_running)));
        assert!(own.eq(counts.iter().map(|(name, count)| (*name, *count))), "uses of adapters are lost");
        let num_placed = counts.values().filter(|(_, running)| *running > 0).count();
        assert_eq!(num_placed, self.num_placed, "places of adapters are lost");
        assert!(num_placed <= self.max, "{num_placed} adapters run at once, at most {} may", self.max);
    }
}
