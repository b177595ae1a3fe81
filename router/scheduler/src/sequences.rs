//! All sequences: those that wait and those that run.

use std::collections::BTreeMap;

use crate::request::RequestId;
use crate::row::Row;
use crate::running::Running;
use crate::sequence::Sequence;

/// The sequences, each of them in one of the two maps. Both are in the order of arrival, because ids count up; so memory
/// goes to those that have waited longest.
#[derive(Debug, Default)]
pub struct Sequences {
    waiting: BTreeMap<RequestId, Sequence>,
    running: BTreeMap<RequestId, Running>,
    next_id: u64,
}

impl Sequences {
    /// An id above all that it has seen.
    pub fn next_id(&self) -> RequestId {
        RequestId(self.next_id)
    }

    /// Adds a sequence, which waits.
    pub fn add(&mut self, sequence: Sequence) {
        self.next_id = self.next_id.max(sequence.id().0 + 1);
        self.waiting.insert(sequence.id(), sequence);
    }

    pub fn len(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    pub fn contains(&self, id: RequestId) -> bool {
        self.get(id).is_some()
    }

    pub fn is_running(&self, id: RequestId) -> bool {
        self.running.contains_key(&id)
    }

    /// A sequence, waiting or running.
    pub fn get(&self, id: RequestId) -> Option<&Sequence> {
        self.running.get(&id).map(Running::sequence).or_else(|| self.waiting.get(&id))
    }

    /// A sequence, waiting or running.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut Sequence> {
        self.running.get_mut(&id).map(Running::sequence_mut).or_else(|| self.waiting.get_mut(&id))
    }

    pub fn waiting(&self, id: RequestId) -> Option<&Sequence> {
        self.waiting.get(&id)
    }

    pub fn running(&self, id: RequestId) -> Option<&Running> {
        self.running.get(&id)
    }

    pub fn running_mut(&mut self, id: RequestId) -> Option<&mut Running> {
        self.running.get_mut(&id)
    }

    pub fn all_waiting(&self) -> impl Iterator<Item = &Sequence> + Clone {
        self.waiting.values()
    }

    pub fn all_waiting_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.waiting.values_mut()
    }

    pub fn all_running(&self) -> impl Iterator<Item = &Running> + Clone {
        self.running.values()
    }

    /// A waiting sequence runs from now on.
    pub fn start(&mut self, id: RequestId, row: Row) {
        if let Some(sequence) = self.waiting.remove(&id) {
            self.running.insert(id, Running::new(sequence, row));
        }
    }

    /// A running sequence waits from now on; its row is what it leaves.
    pub fn stop(&mut self, id: RequestId) -> Option<(&Sequence, Row)> {
        let (sequence, row) = self.running.remove(&id)?.into_parts();
        Some((self.waiting.entry(id).or_insert(sequence), row))
    }

    /// Takes a waiting sequence out for good.
    pub fn remove(&mut self, id: RequestId) -> Option<Sequence> {
        self.waiting.remove(&id)
    }

    /// A plan that computed something for a sequence is answered. Returns it if it still runs.
    pub fn on_answered(&mut self, id: RequestId) -> Option<&mut Running> {
        if let Some(running) = self.running.get_mut(&id) {
            running.sequence_mut().on_answered();
            return Some(running);
        }
        self.waiting.get_mut(&id).map(Sequence::on_answered).and(None)
    }

    /// The shards are lost: no plan will be answered.
    pub fn forget_in_flight(&mut self) {
        self.waiting.values_mut().for_each(Sequence::forget_in_flight);
        self.running.values_mut().for_each(|running| running.sequence_mut().forget_in_flight());
    }

    /// Panics if a sequence both waits and runs, or is not filed under its id.
    pub fn check(&self) {
        self.running.values().for_each(Running::check);
        let waiting = self.waiting.iter().map(|(id, sequence)| (*id, sequence.id()));
        let running = self.running.iter().map(|(id, running)| (*id, running.id()));
        for (id, own) in waiting.chain(running) {
            assert!(id == own && id.0 < self.next_id, "{own:?} is filed under {id:?}");
        }
        assert!(self.running.keys().all(|id| !self.waiting.contains_key(id)), "a sequence waits and runs");
    }
}
