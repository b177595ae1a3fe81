//! Prefill and decode apart: when a replica has computed the prompt of a request, the request goes on with another
//! replica, and so do its blocks.

use penstock_scheduler::{Event, Offer, RequestId, TransferId, arrive, pass_on};
use tracing::{debug, warn};

use super::block_transfer::FetchFailure;
use super::replica::Replica;
use super::replicas::Replicas;
use super::transfers::{Begun, Transferred, Way};

/// The transfers that began in a look at all replicas, and their events.
#[derive(Default)]
pub(super) struct Passed {
    pub begun: Vec<Begun>,
    pub events: Vec<Event>,
}

impl Replicas {
    /// Begins to pass on requests that are ready for it, if another replica has room. A replica that could pass nothing
    /// on generates itself.
    pub fn pass_on(&mut self) -> Passed {
        let mut passed = Passed::default();
        for from in 0..self.replicas.len() {
            let passes_on = self.can_send(from) && (0..self.replicas.len()).any(|to| self.can_take(to));
            self.replicas[from].set_passes_on(passes_on);
            if passes_on {
                self.pass_on_from(from, &mut passed);
            }
        }
        passed
    }

    fn can_send(&self, from: usize) -> bool {
        let replica = &self.replicas[from];
        self.config.prefix_caching
            && !replica.role().takes_over()
            && replica.is_computing()
            && replica.block_source().is_some()
    }

    fn can_take(&self, to: usize) -> bool {
        let replica = &self.replicas[to];
        replica.role().takes_over()
            && replica.is_computing()
            && replica.takes_requests()
            && replica.block_fetcher().is_some()
    }

    fn pass_on_from(&mut self, from: usize, passed: &mut Passed) {
        for id in self.replicas[from].scheduler().passable() {
            let offers = self.offers_to_generate(from, id);
            if offers.iter().all(Option::is_none) {
                self.replicas[from].scheduler_mut().keep(id);
                continue;
            }
            let here = self.replicas[from].scheduler();
            let has_room = |to: &usize| self.replicas[*to].scheduler().has_room_for(here, id);
            let with_room: Vec<_> =
                (0..offers.len()).map(|to| offers[to].filter(|_| has_room(&to))).collect();
            // The requests after it wait, too; otherwise a large one might wait for ever.
            let Some(to) = self.generators.choose(&with_room) else { return };
            if let Some((begun, event)) = self.pass_one_on(from, to, id) {
                passed.begun.push(begun);
                passed.events.push(event);
            }
        }
    }

    fn offers_to_generate(&self, from: usize, id: RequestId) -> Vec<Option<Offer>> {
        let here = self.replicas[from].scheduler();
        let offer =
            |to: usize| here.offer_of(id, self.replicas[to].scheduler()).filter(|_| self.can_take(to));
        (0..self.replicas.len()).map(offer).collect()
    }

    fn pass_one_on(&mut self, from: usize, to: usize, id: RequestId) -> Option<(Begun, Event)> {
        let transfer = TransferId(self.next_transfer);
        let [here, there] = self.replicas.get_disjoint_mut([from, to]).ok()?;
        let (source, fetcher) = (here.block_source()?, there.block_fetcher()?);
        let (pairs, event) = pass_on(here.scheduler_mut(), there.scheduler_mut(), id, transfer)?;
        self.next_transfer += 1;
        let way = Way { from: here.number(), to: there.number() };
        debug!(sequence = id.0, from = way.from, to = way.to, blocks = pairs.len(), "goes on elsewhere");
        Some((Begun { id: transfer, way, pairs, source, fetcher }, event))
    }

    /// Blocks came, or did not: the request goes on where they were to come, or where it was if that is not there any more.
    pub fn on_transferred(&mut self, done: &Transferred) {
        let Way { from, to } = done.way;
        let is_copied = match &done.result {
            Ok(_) => true,
            Err(FetchFailure::Refused(reason)) => {
                warn!(
                    from,
                    to, reason, "blocks do not come from another replica: the prompt is computed again"
                );
                false
            }
            Err(FetchFailure::Unanswered(reason)) => {
                warn!(
                    from,
                    to, reason, "blocks stay set aside until the shards of the replica are connected again"
                );
                return self.abandon(done);
            }
        };
        match (self.index_of(from), self.index_of(to)) {
            (Some(here), Some(there)) => {
                if let Ok([here, there]) = self.replicas.get_disjoint_mut([here, there]) {
                    arrive(here.scheduler_mut(), there.scheduler_mut(), done.id, is_copied);
                }
            }
            (Some(here), None) => drop(self.replicas[here].scheduler_mut().depart(done.id)),
            (None, Some(there)) => self.replicas[there].scheduler_mut().refuse(done.id),
            (None, None) => {}
        }
    }

    fn abandon(&mut self, done: &Transferred) {
        if let Some(to) = self.index_of(done.way.to) {
            self.replicas[to].scheduler_mut().abandon(done.id);
        }
        if let Some(from) = self.index_of(done.way.from) {
            let here = self.replicas[from].scheduler_mut();
            if let Some(id) = here.depart(done.id) {
                here.keep(id);
            }
        }
    }

    /// Requests that were to go on elsewhere go on where they are: nobody waits for them any more.
    pub fn give_up(&mut self, transfer: TransferId, from: usize) {
        if let Some(from) = self.index_of(from) {
            self.replicas[from].scheduler_mut().depart(transfer);
        }
    }

    /// Whether requests with a prompt to compute go to a replica: not to those that generate only, unless there are no others.
    pub fn is_for_prompts(&self, replica: &Replica) -> bool {
        let computes = |it: &Replica| it.is_ready() && it.takes_requests() && it.role().computes_prompts();
        replica.role().computes_prompts() || !self.replicas.iter().any(computes)
    }

    fn index_of(&self, number: usize) -> Option<usize> {
        self.replicas.iter().position(|replica| replica.number() == number)
    }
}
