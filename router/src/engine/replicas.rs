//! All replicas of the model: which of them a request goes to, and where it goes on when its shards are lost. It knows no
//! clients.
//!
//! One task owns them all, so a request is placed by what every replica holds at that moment, and the next one sees the
//! first where it is.

use std::time::Duration;

use futures::future::select_all;
use penstock_scheduler::{
    Event, EventKind, Failure, NewRequest, Newcomer, Offer, Placement, Refused, RequestId, SchedulerConfig,
    Taken, even_out,
};
use tracing::{debug, info};

use super::Engine;
use super::condition::Condition;
use super::generation::{EngineStatus, ReplicaStatus};
use super::link::Arrival;
use super::replica::Replica;
use crate::observe::observer::ReplicaLevels;

/// The replicas.
pub(super) struct Replicas {
    /// The replicas in the order of their numbers.
    pub(super) replicas: Vec<Replica>,
    /// The settings with the size of the whole server; each replica has a part of it.
    pub(super) config: SchedulerConfig,
    pub(super) placement: Placement,
    /// Which of them generates what another has computed the prompt of.
    pub(super) generators: Placement,
    pub(super) next_transfer: u64,
    next_id: u64,
    /// The replica whose arrivals are looked at first.
    turn: usize,
}

impl Replicas {
    /// One for each engine; those that are not connected yet join when they are.
    pub fn new(engines: Vec<Box<dyn Engine>>, config: &SchedulerConfig) -> Self {
        let mut this = Self {
            replicas: Vec::new(),
            placement: Placement::new(config.placement),
            generators: Placement::new(config.placement),
            config: config.clone(),
            next_transfer: 0,
            next_id: 0,
            turn: 0,
        };
        engines.into_iter().for_each(|engine| drop(this.add(engine)));
        this
    }

    /// The next result from the shards of any replica, with the number of the replica. Cancel safe.
    pub async fn next(&mut self) -> (usize, Arrival) {
        let len = self.replicas.len();
        self.turn = (self.turn + 1) % len;
        let (later, sooner) = self.replicas.split_at_mut(self.turn);
        let ordered = sooner.iter_mut().chain(later);
        let (arrival, index, _) = select_all(ordered.map(|replica| Box::pin(replica.next()))).await;
        ((self.turn + index) % len, arrival)
    }

    pub fn get(&mut self, index: usize) -> &mut Replica {
        &mut self.replicas[index]
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Replica> {
        self.replicas.iter_mut()
    }

    pub fn len(&self) -> usize {
        self.replicas.len()
    }

    /// Queues a request with the replica that has the least to do for it, or says which limit it would break.
    pub fn submit(&mut self, request: NewRequest, now: Duration) -> Result<RequestId, Refused> {
        let largest = self.largest();
        self.replicas[largest].check_room(&request, self.taken_beside(largest))?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let newcomer = self.replicas[largest].newcomer(id, request, now);
        self.adopt(newcomer, largest);
        Ok(id)
    }

    /// The replica in which a request fits if it fits in any. There is always one that takes requests.
    fn largest(&self) -> usize {
        let taking = (0..self.replicas.len()).filter(|index| self.replicas[*index].takes_requests());
        taking.max_by_key(|index| self.replicas[*index].num_blocks()).unwrap_or(0)
    }

    /// The part of the server's limits that the requests of all other replicas use.
    fn taken_beside(&self, index: usize) -> Taken {
        let others = self.replicas.iter().enumerate().filter(|(other, _)| *other != index);
        others.map(|(_, replica)| replica.taken()).sum()
    }

    /// Gives a request to the best replica, or to `otherwise` if there is none.
    fn adopt(&mut self, newcomer: Newcomer, otherwise: usize) {
        let (index, offer) = self.place(&newcomer).unwrap_or((otherwise, Offer::default()));
        self.replicas[index].adopt(newcomer, offer.matched);
    }

    /// Forgets a request. Unknown ids are fine.
    pub fn cancel(&mut self, id: RequestId) {
        self.replicas.iter_mut().for_each(|replica| replica.cancel(id));
    }

    /// Fails all that has begun.
    pub fn abort_begun(&mut self) -> Vec<Event> {
        self.replicas.iter_mut().flat_map(|replica| replica.scheduler_mut().abort_begun()).collect()
    }

    /// Fails requests that waited longer than they may.
    pub fn expire(&mut self, now: Duration) -> Vec<Event> {
        self.replicas.iter_mut().flat_map(|replica| replica.expire(now)).collect()
    }

    /// Requests of replicas that are down go on where shards answer, if they do anywhere. One that fits nowhere else fails
    /// if its own shards will not come back.
    pub fn move_on(&mut self) -> Vec<Event> {
        if !self.replicas.iter().any(Replica::is_ready) {
            return Vec::new();
        }
        let down: Vec<_> =
            (0..self.replicas.len()).filter(|index| !self.replicas[*index].is_ready()).collect();
        down.into_iter().flat_map(|from| self.move_from(from)).collect()
    }

    fn move_from(&mut self, from: usize) -> Vec<Event> {
        let leaving = self.replicas[from].evacuate();
        if !leaving.is_empty() {
            info!(replica = from, requests = leaving.len(), "requests go on with other replicas");
        }
        leaving.into_iter().filter_map(|newcomer| self.move_one(newcomer, from)).collect()
    }

    fn move_one(&mut self, newcomer: Newcomer, from: usize) -> Option<Event> {
        if let Some(lost) = self.replicas[from].gone_for_good()
            && self.place(&newcomer).is_none()
        {
            let kind = EventKind::Failed(Failure::EngineLost(lost));
            return Some(Event { id: newcomer.id(), kind });
        }
        self.adopt(newcomer, from);
        None
    }

    /// Requests that wait move to replicas that have become free. Returns whether any did.
    pub fn even_out(&mut self) -> bool {
        let is_needed = self.replicas.len() > 1 && self.placement.moves();
        if !is_needed || self.replicas.iter().all(|replica| replica.num_waiting() == 0) {
            return false;
        }
        let may_take: Vec<_> = self.replicas.iter().map(|it| self.is_for_prompts(it)).collect();
        let ready = self.replicas.iter_mut().zip(may_take);
        let ready = ready.filter(|(it, may_take)| *may_take && it.is_ready() && it.takes_requests());
        let num_moved = even_out(&mut ready.map(|(it, _)| it.scheduler_mut()).collect::<Vec<_>>());
        if num_moved > 0 {
            debug!(requests = num_moved, "requests that waited go to replicas that are free");
        }
        num_moved > 0
    }

    /// The best replica that answers, else the best that may come back; `None` if the request fits none.
    fn place(&mut self, newcomer: &Newcomer) -> Option<(usize, Offer)> {
        // Without a choice, what the only one has of it need not be looked up twice.
        if let [only] = &self.replicas[..] {
            return only.is_usable().then(|| (0, Offer::default()));
        }
        let computes = |replica: &Replica| replica.is_ready() && replica.role().computes_prompts();
        self.best(newcomer, computes)
            .or_else(|| self.best(newcomer, Replica::is_ready))
            .or_else(|| self.best(newcomer, Replica::is_usable))
    }

    fn best(
        &mut self,
        newcomer: &Newcomer,
        is_candidate: impl Fn(&Replica) -> bool,
    ) -> Option<(usize, Offer)> {
        let offer = |replica: &Replica| {
            replica.offer(newcomer).filter(|_| replica.takes_requests() && is_candidate(replica))
        };
        let offers: Vec<_> = self.replicas.iter().map(offer).collect();
        let index = self.placement.choose(&offers)?;
        Some((index, offers[index]?))
    }

    /// Changes the shards of all replicas to what is wanted, as soon as the plans of all that are to change are
    /// answered: no replica begins to compute with new weights while another still computes with the old ones. Returns
    /// whether any change began, and what happened to requests.
    pub fn change(&mut self, wanted: &Condition) -> (bool, Vec<Event>) {
        self.replicas.iter_mut().for_each(|replica| replica.rest(wanted));
        if self.replicas.iter().any(Replica::is_coming_to_rest) {
            return (false, Vec::new());
        }
        let began: Vec<_> = self.replicas.iter_mut().filter_map(Replica::change).collect();
        (!began.is_empty(), began.into_iter().flatten().collect())
    }

    /// Whether the shards of any are about to become others, or are doing so.
    pub fn are_changing(&self) -> bool {
        self.replicas.iter().any(Replica::is_changing)
    }

    /// The reason, if none has shards that may come back.
    pub fn lost(&self) -> Option<&str> {
        let reasons = self.replicas.iter().map(|replica| match replica.status() {
            EngineStatus::Lost(reason) => Some(reason.as_str()),
            EngineStatus::Ready
            | EngineStatus::Asleep
            | EngineStatus::Changing
            | EngineStatus::Restarting(_) => None,
        });
        reasons.collect::<Option<Vec<_>>>()?.first().copied()
    }

    /// The status of each.
    pub fn statuses(&self) -> Vec<ReplicaStatus> {
        let status = |replica: &Replica| ReplicaStatus {
            replica: replica.number(),
            takes_requests: replica.takes_requests(),
            role: replica.role(),
            awake_bytes: replica.awake_bytes(),
            status: replica.status().clone(),
        };
        self.replicas.iter().map(status).collect()
    }

    /// The levels of each.
    pub fn levels(&self) -> Vec<ReplicaLevels> {
        self.replicas.iter().map(Replica::levels).collect()
    }
}
