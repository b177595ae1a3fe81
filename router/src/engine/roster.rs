//! How replicas come, and how they go without losing anything: one that is drained lets its requests go to others, and is
//! forgotten when it has none.

use std::time::Duration;

use penstock_scheduler::{Event, Offer, RequestId, Scheduler, Totals};
use tokio::sync::oneshot;
use tracing::info;

use super::Engine;
use super::membership::{Members, MembershipError, ReplicaEntry};
use super::replica::{Drain, Replica};
use super::replicas::Replicas;

/// Replicas that were forgotten.
#[derive(Debug, Default)]
pub(super) struct Departed {
    /// The totals that they had counted.
    pub totals: Totals,
    /// Their numbers.
    pub replicas: Vec<usize>,
}

impl Replicas {
    /// Does what is asked for. Who asked may have left.
    pub fn on_members(&mut self, members: Members, now: Duration) {
        match members {
            Members::List(reply) => drop(reply.send(self.entries())),
            Members::Add(engine, reply) => drop(reply.send(self.add(engine))),
            Members::Drain(number, limit, reply) => {
                let until = limit.map(|limit| now.saturating_add(limit));
                drop(reply.send(self.drain(number, until)));
            }
            Members::Resume(number, reply) => drop(reply.send(self.resume(number))),
            Members::Remove(number, limit, reply, gone) => {
                drop(reply.send(self.remove(number, now.saturating_add(limit), gone)));
            }
        }
    }

    /// The entries of all replicas, for operators.
    pub fn entries(&self) -> Vec<ReplicaEntry> {
        self.replicas.iter().map(Replica::entry).collect()
    }

    /// One more, under its own number or the first that is free.
    pub fn add(&mut self, engine: Box<dyn Engine>) -> ReplicaEntry {
        let is_free = |number: &usize| self.replicas.iter().all(|replica| replica.number() != *number);
        let first_free = || (0..).find(is_free).unwrap_or_default();
        let number = engine.origin().number.filter(is_free).unwrap_or_else(first_free);
        let place = self.replicas.partition_point(|replica| replica.number() < number);
        let replica = Replica::new(number, engine, self.config.clone());
        let entry = replica.entry();
        info!(replica = number, address = entry.address, "is one of the replicas");
        self.replicas.insert(place, replica);
        entry
    }

    /// Gives a replica no new requests; what runs there stays until then.
    pub fn drain(&mut self, number: usize, until: Option<Duration>) -> Result<ReplicaEntry, MembershipError> {
        self.check_not_last(number)?;
        let replica = self.find(number)?;
        match replica.drain_mut() {
            Some(drain) => drain.until = until,
            None => replica.set_drain(Some(Drain { until, leaves: None })),
        }
        info!(replica = number, "takes no new requests");
        Ok(replica.entry())
    }

    /// Gives a replica requests again, unless it is to be forgotten.
    pub fn resume(&mut self, number: usize) -> Result<ReplicaEntry, MembershipError> {
        let replica = self.find(number)?;
        if replica.is_leaving() {
            return Err(MembershipError::Unknown(number));
        }
        replica.set_drain(None);
        info!(replica = number, "takes requests again");
        Ok(replica.entry())
    }

    /// Drains a replica, and forgets it when it has nothing left. `gone` is told then.
    pub fn remove(
        &mut self,
        number: usize,
        until: Duration,
        gone: oneshot::Sender<()>,
    ) -> Result<ReplicaEntry, MembershipError> {
        self.check_not_last(number)?;
        self.check_not_last_supervised(number)?;
        let replica = self.find(number)?;
        replica.set_drain(Some(Drain { until: Some(until), leaves: Some(gone) }));
        info!(replica = number, "is removed");
        Ok(replica.entry())
    }

    fn find(&mut self, number: usize) -> Result<&mut Replica, MembershipError> {
        let found = self.replicas.iter_mut().find(|replica| replica.number() == number);
        found.ok_or(MembershipError::Unknown(number))
    }

    fn check_not_last(&self, number: usize) -> Result<(), MembershipError> {
        let mut others = self.replicas.iter().filter(|replica| replica.number() != number);
        if others.any(Replica::takes_requests) { Ok(()) } else { Err(MembershipError::Last(number)) }
    }

    /// A launcher ends with the last shards that it has to keep running.
    fn check_not_last_supervised(&self, number: usize) -> Result<(), MembershipError> {
        let stays = |replica: &Replica| {
            replica.origin().is_supervised && replica.gone_for_good().is_none() && replica.number() != number
        };
        let is_supervised = self.replicas.iter().any(|it| it.number() == number && it.origin().is_supervised);
        if is_supervised && !self.replicas.iter().any(stays) {
            return Err(MembershipError::LastSupervised(number));
        }
        Ok(())
    }

    /// Requests of drained replicas go on with others, those that wait at once, those that run when their time is over.
    pub fn relieve(&mut self, now: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        for from in 0..self.replicas.len() {
            let until = self.replicas[from].drain_mut().map(|drain| drain.until);
            if until.is_none() || !self.replicas[from].is_ready() {
                continue;
            }
            if until.flatten().is_some_and(|until| until <= now) {
                events.extend(self.stop_running(from));
            }
            self.relieve_one(from);
        }
        events
    }

    /// Sends what runs back into the queue of its replica, if it can go on elsewhere.
    fn stop_running(&mut self, from: usize) -> Vec<Event> {
        let mut stoppable = self.replicas[from].scheduler().stoppable();
        stoppable.retain(|id| self.offers(from, *id).iter().any(Option::is_some));
        let scheduler = self.replicas[from].scheduler_mut();
        stoppable.into_iter().map(|id| scheduler.stop(id)).collect()
    }

    fn relieve_one(&mut self, from: usize) {
        let leavable = self.replicas[from].scheduler().leavable();
        let num_moved = leavable.into_iter().filter(|id| self.move_on_one(from, *id)).count();
        if num_moved > 0 {
            let replica = self.replicas[from].number();
            info!(replica, requests = num_moved, "requests of a drained replica go on with others");
        }
    }

    fn move_on_one(&mut self, from: usize, id: RequestId) -> bool {
        let offers = self.offers(from, id);
        let Some(to) = self.placement.choose(&offers) else { return false };
        let matched = offers[to].map_or(0, |offer| offer.matched);
        let Some(newcomer) = self.replicas[from].scheduler_mut().leave(id) else { return false };
        self.replicas[to].adopt(newcomer, matched);
        true
    }

    /// The offers of all replicas that answer and take requests, for a request of the replica `from`.
    fn offers(&self, from: usize, id: RequestId) -> Vec<Option<Offer>> {
        let here: &Scheduler = self.replicas[from].scheduler();
        let offer = |there: &Replica| {
            let may_take = there.is_ready() && there.takes_requests() && self.is_for_prompts(there);
            if may_take { here.offer_of(id, there.scheduler()) } else { None }
        };
        self.replicas.iter().map(offer).collect()
    }

    /// Forgets replicas that are to be forgotten and have nothing left. Returns them, if there were any.
    pub fn let_go(&mut self) -> Option<Departed> {
        let mut departed: Option<Departed> = None;
        let is_gone = |replica: &mut Replica| replica.is_leaving() && replica.is_empty();
        for mut replica in self.replicas.extract_if(.., is_gone) {
            info!(replica = replica.number(), "is forgotten");
            let all = departed.get_or_insert_default();
            all.totals = all.totals + replica.levels().levels.totals;
            all.replicas.push(replica.number());
            if let Some(gone) = replica.drain_mut().and_then(|drain| drain.leaves.take()) {
                // Who asked for it may have left.
                let _ = gone.send(());
            }
        }
        departed
    }
}
