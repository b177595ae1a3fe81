//! The order of waiting requests. Tenants share what is served by weight: the one that was served least comes first. Within a tenant
//! the order is arrival, where each level of priority is worth a fixed time of waiting, so that nothing waits for
//! ever. Sequences that ran before, and were preempted or lost their shards, come before all others, oldest first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::request::RequestId;

/// One level of priority is worth this much waiting.
const PRIORITY_STEP: Duration = Duration::from_secs(10);
/// Accounts count in this fraction of a token, so that a large weight is not lost in rounding.
const PARTS: u64 = 1 << 16;
/// Tenants without work whose account is kept, so that a pause does not clear it.
const MAX_IDLE_TENANTS: usize = 4096;

/// Position within a tenant: lower goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Arrival in microseconds, moved by priority.
    virtual_arrival: i128,
    id: RequestId,
}

/// A waiting request as the queue needs it.
#[derive(Debug, Clone)]
pub struct Ticket {
    pub id: RequestId,
    pub tenant: Arc<str>,
    pub priority: i32,
    pub arrived: Duration,
}

impl Ticket {
    fn rank(&self) -> Rank {
        let moved = PRIORITY_STEP.as_micros() as i128 * i128::from(self.priority);
        Rank { virtual_arrival: self.arrived.as_micros() as i128 - moved, id: self.id }
    }
}

#[derive(Debug, Default)]
struct Tenant {
    /// Tokens served, divided by the tenant's weight, in units of 1/`PARTS` tokens.
    served: u64,
    waiting: BTreeSet<Rank>,
    /// Requests of it that wait or run.
    num_active: usize,
}

/// The waiting requests of all tenants.
#[derive(Debug, Default)]
pub struct FairQueue {
    resuming: BTreeSet<RequestId>,
    tenants: HashMap<Arc<str>, Tenant, foldhash::fast::FixedState>,
    /// Tenants with waiting requests, least served first.
    order: BTreeSet<(u64, Arc<str>)>,
    weights: BTreeMap<Arc<str>, u32>,
    num_waiting: usize,
}

impl FairQueue {
    /// A queue in which a tenant without an entry in `weights` has weight 1.
    pub fn new(weights: BTreeMap<Arc<str>, u32>) -> Self {
        Self { weights, ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.resuming.len() + self.num_waiting
    }

    /// A request arrives.
    pub fn push(&mut self, ticket: &Ticket) {
        if !self.tenants.contains_key(&ticket.tenant) {
            self.drop_idle_tenants();
        }
        // A tenant that had no requests starts level with the others: it gets no credit for that time.
        let active = self.tenants.get(&ticket.tenant).is_some_and(|tenant| tenant.num_active > 0);
        let floor = if active { 0 } else { self.least_served_active() };
        let tenant = self.tenants.entry(Arc::clone(&ticket.tenant)).or_default();
        tenant.served = tenant.served.max(floor);
        tenant.num_active += 1;
        if tenant.waiting.is_empty() {
            self.order.insert((tenant.served, Arc::clone(&ticket.tenant)));
        }
        tenant.waiting.insert(ticket.rank());
        self.num_waiting += 1;
    }

    /// A running request comes back; it keeps its age.
    pub fn push_resuming(&mut self, id: RequestId) {
        self.resuming.insert(id);
    }

    /// A request leaves the queue, to run or for good. False if it was not there.
    pub fn remove(&mut self, ticket: &Ticket) -> bool {
        if self.resuming.remove(&ticket.id) {
            return true;
        }
        let Some(tenant) = self.tenants.get_mut(&ticket.tenant) else { return false };
        if !tenant.waiting.remove(&ticket.rank()) {
            return false;
        }
        self.num_waiting -= 1;
        if tenant.waiting.is_empty() {
            self.order.remove(&(tenant.served, Arc::clone(&ticket.tenant)));
        }
        true
    }

    /// A request of the tenant ended, wherever it was.
    pub fn on_ended(&mut self, tenant: &str) {
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.num_active -= 1;
        }
    }

    /// Tokens were computed for the tenant.
    pub fn charge(&mut self, name: &Arc<str>, tokens: u64) {
        let weight = u64::from(self.weights.get(name).copied().unwrap_or(1).max(1));
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        let before = tenant.served;
        tenant.served += (tokens * PARTS).div_ceil(weight);
        if !tenant.waiting.is_empty() {
            self.order.remove(&(before, Arc::clone(name)));
            self.order.insert((tenant.served, Arc::clone(name)));
        }
    }

    /// The requests in the order in which they should run.
    pub fn iter(&self) -> impl Iterator<Item = RequestId> + '_ {
        let fresh = self.order.iter().filter_map(|(_, name)| self.tenants.get(name));
        self.resuming
            .iter()
            .copied()
            .chain(fresh.flat_map(|tenant| tenant.waiting.iter().map(|rank| rank.id)))
    }

    /// How many requests of each tenant wait, for metrics.
    pub fn waiting_by_tenant(&self) -> impl Iterator<Item = (&str, usize)> {
        self.tenants.iter().map(|(name, tenant)| (&**name, tenant.waiting.len()))
    }

    /// Panics unless its counts and orders agree with the tenants.
    pub fn check(&self) {
        let num_waiting: usize = self.tenants.values().map(|tenant| tenant.waiting.len()).sum();
        assert_eq!(num_waiting, self.num_waiting, "waiting requests are lost");
        let waiting = self.tenants.iter().filter(|(_, tenant)| !tenant.waiting.is_empty());
        let order: BTreeSet<_> = waiting.map(|(name, tenant)| (tenant.served, Arc::clone(name))).collect();
        assert_eq!(order, self.order, "tenants are out of order");
        let mut tenants = self.tenants.values();
        assert!(
            tenants.all(|tenant| tenant.waiting.len() <= tenant.num_active),
            "a request waits and has ended"
        );
    }

    fn least_served_active(&self) -> u64 {
        let active = self.tenants.values().filter(|tenant| tenant.num_active > 0);
        active.map(|tenant| tenant.served).min().unwrap_or(0)
    }

    fn drop_idle_tenants(&mut self) {
        if self.tenants.len() >= MAX_IDLE_TENANTS {
            self.tenants.retain(|_, tenant| tenant.num_active > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticket(id: u64, tenant: &str, priority: i32) -> Ticket {
        Ticket { id: RequestId(id), tenant: tenant.into(), priority, arrived: Duration::from_secs(id) }
    }

    fn order(queue: &FairQueue) -> Vec<u64> {
        queue.iter().map(|id| id.0).collect()
    }

    #[test]
    fn the_tenant_served_least_goes_first() {
        let mut queue = FairQueue::default();
        for (id, tenant) in [(1, "greedy"), (2, "greedy"), (3, "modest")] {
            queue.push(&ticket(id, tenant, 0));
        }
        queue.charge(&"greedy".into(), 100);
        assert_eq!(order(&queue), [3, 1, 2]);
    }

    #[test]
    fn a_larger_weight_gives_a_larger_share() {
        let mut queue = FairQueue::new(BTreeMap::from([("gold".into(), 10)]));
        queue.push(&ticket(1, "gold", 0));
        queue.push(&ticket(2, "plain", 0));
        queue.charge(&"gold".into(), 500);
        queue.charge(&"plain".into(), 60);
        assert_eq!(order(&queue), [1, 2]);
    }

    #[test]
    fn a_large_weight_counts_in_full_for_small_amounts() {
        let mut queue = FairQueue::new(BTreeMap::from([("gold".into(), 1000)]));
        queue.push(&ticket(1, "gold", 0));
        queue.push(&ticket(2, "plain", 0));
        for _ in 0..900 {
            queue.charge(&"gold".into(), 1);
        }
        queue.charge(&"plain".into(), 1);
        assert_eq!(order(&queue), [1, 2]);
    }

    #[test]
    fn a_level_of_priority_is_worth_ten_seconds_of_waiting() {
        let mut queue = FairQueue::default();
        queue.push(&ticket(1, "t", 0));
        queue.push(&ticket(8, "t", 1));
        queue.push(&ticket(12, "t", 1));
        assert_eq!(order(&queue), [8, 1, 12], "ten seconds a level");
    }

    #[test]
    fn resuming_requests_go_before_all() {
        let mut queue = FairQueue::default();
        queue.push(&ticket(1, "t", 5));
        queue.push_resuming(RequestId(9));
        assert_eq!(order(&queue), [9, 1]);
    }

    #[test]
    fn a_tenant_without_requests_earns_no_credit() {
        let mut queue = FairQueue::default();
        queue.push(&ticket(1, "busy", 0));
        queue.charge(&"busy".into(), 1_000);
        queue.push(&ticket(2, "new", 0));
        queue.charge(&"new".into(), 1);
        assert_eq!(order(&queue), [1, 2], "it starts level, not a thousand ahead");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn agrees_with_a_sorted_list(steps in prop::collection::vec((0u32..3, 0u64..20, 0u64..3), 0..200)) {
            let tenants: [Arc<str>; 3] = ["a".into(), "b".into(), "c".into()];
            let mut queue = FairQueue::default();
            let mut waiting: Vec<Ticket> = Vec::new();
            let mut served = [0u64; 3];
            // All tenants are active for ever, so that no account is lifted.
            tenants.iter().enumerate().for_each(|(i, name)| {
                let first = ticket(1000 + i as u64, name, 0);
                queue.push(&first);
                queue.remove(&first);
            });
            for (step, id, tenant) in steps {
                let one = Ticket { tenant: tenants[tenant as usize].clone(), ..ticket(id, "", (id % 3) as i32) };
                match step {
                    0 if waiting.iter().all(|other| other.id != one.id) => {
                        queue.push(&one);
                        waiting.push(one);
                    }
                    1 => {
                        let found = waiting.iter().position(|other| other.id == one.id);
                        if let Some(at) = found {
                            prop_assert!(queue.remove(&waiting.remove(at)));
                        }
                    }
                    _ => {
                        queue.charge(&tenants[tenant as usize], id);
                        served[tenant as usize] += id;
                    }
                }
                let account = |name: &str| served[usize::from(name.as_bytes()[0] - b'a')];
                waiting.sort_by_key(|t| (account(&t.tenant), t.tenant.clone(), t.rank()));
                prop_assert_eq!(order(&queue), waiting.iter().map(|t| t.id.0).collect::<Vec<_>>());
                prop_assert_eq!(queue.len(), waiting.len());
            }
        }
    }
}
