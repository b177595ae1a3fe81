//! Which of several schedulers a request goes to: a pure function of what each would have to do for it.
//!
//! Everything is counted in tokens of a prompt. Schedulers tell exactly what they hold, so a conversation returns to where
//! its beginning is for as long as that pays, and nothing has to be remembered of it.

/// A token that is computed again weighs as much as so many that wait: it delays the others, too, and takes room in the
/// cache that other prefixes lose.
const RECOMPUTED: u64 = 2;
/// The weight of each other request: a step takes a little longer with each. About a block, so that among schedulers
/// that have nothing of a prompt the one with the fewest requests is taken, and a few requests outweigh no
/// conversation.
const OTHER: u64 = 16;
/// The weight of each request that is in the way of a slot: one of them has to end first, which takes many steps.
const IN_THE_WAY: u64 = 256;
/// A request that waits moves only for more than this: it would be begun soon where it is, too.
const MOVE: u64 = 64;

/// The work that a scheduler would have with a request, and the work that it has to do before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offer {
    /// Tokens of the request so far.
    pub len: u32,
    /// How many of its first tokens are cached, or are computed for another request anyway.
    pub matched: u32,
    /// Tokens of other requests that are to be computed before they generate.
    pub pending: u64,
    /// Other requests, waiting and running.
    pub num_others: usize,
    /// Rows for running ones.
    pub num_slots: u32,
    /// Blocks that are held or cached.
    pub num_filled: usize,
}

/// How requests are divided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PlacementPolicy {
    /// To the scheduler that has the least to do until a request's first token. One that waits moves to another that has
    /// become free.
    #[default]
    LeastWork,
    /// To each in turn, whatever they hold. Nothing moves.
    RoundRobin,
}

/// Chooses where requests go.
#[derive(Debug)]
pub struct Placement {
    policy: PlacementPolicy,
    /// The scheduler whose turn it is.
    turn: usize,
}

impl Placement {
    /// A placement by this policy.
    pub fn new(policy: PlacementPolicy) -> Self {
        Self { policy, turn: 0 }
    }

    /// Whether requests that wait may move.
    pub fn moves(&self) -> bool {
        self.policy == PlacementPolicy::LeastWork
    }

    /// The scheduler that takes a request; `None` if there is no offer.
    pub fn choose(&mut self, offers: &[Option<Offer>]) -> Option<usize> {
        match self.policy {
            PlacementPolicy::LeastWork => least_work(offers),
            PlacementPolicy::RoundRobin => self.next_in_turn(offers),
        }
    }

    fn next_in_turn(&mut self, offers: &[Option<Offer>]) -> Option<usize> {
        let in_turn = (0..offers.len()).map(|step| (self.turn + step) % offers.len());
        let index = in_turn.into_iter().find(|index| offers[*index].is_some())?;
        self.turn = index + 1;
        Some(index)
    }
}

/// The offer with the least to do until the request's first token. Of equals, of who has cached the least, then the first.
fn least_work(offers: &[Option<Offer>]) -> Option<usize> {
    let made = offers.iter().enumerate().filter_map(|(index, offer)| Some((index, (*offer)?)));
    made.min_by_key(|(index, offer)| (cost(offer), offer.num_filled, *index)).map(|(index, _)| index)
}

/// Whether a request that waits `here` had better wait `there`.
pub(crate) fn pays_to_move(here: &Offer, there: &Offer) -> bool {
    cost(there) + MOVE < cost(here)
}

fn cost(offer: &Offer) -> u64 {
    let to_compute = u64::from(offer.len - offer.matched.min(offer.len));
    let others = offer.num_others as u64;
    let in_the_way = (others + 1).saturating_sub(offer.num_slots.into());
    offer.pending + RECOMPUTED * to_compute + OTHER * others + IN_THE_WAY * in_the_way
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Offer =
        Offer { len: 400, matched: 0, pending: 0, num_others: 0, num_slots: 8, num_filled: 0 };

    fn chosen(offers: &[Offer]) -> Option<usize> {
        least_work(&offers.iter().copied().map(Some).collect::<Vec<_>>())
    }

    #[test]
    fn a_prompt_goes_where_most_of_it_is_cached() {
        let some = Offer { matched: 160, ..IDLE };
        let more = Offer { matched: 320, ..IDLE };
        assert_eq!(chosen(&[IDLE, some, more]), Some(2));
        assert_eq!(chosen(&[more, some, IDLE]), Some(0));
    }

    #[test]
    fn a_prompt_that_nobody_has_goes_where_the_least_waits() {
        let behind_a_prompt = Offer { pending: 90, ..IDLE };
        let behind_others = Offer { num_others: 5, ..IDLE };
        assert_eq!(chosen(&[behind_a_prompt, behind_others, Offer { num_others: 1, ..IDLE }]), Some(2));
        assert_eq!(chosen(&[behind_a_prompt, Offer { num_others: 6, ..IDLE }]), Some(0));
    }

    #[test]
    fn it_leaves_its_beginning_behind_when_more_work_waits_there_than_twice_that() {
        let home = |pending| Offer { matched: 320, pending, ..IDLE };
        assert_eq!(chosen(&[home(639), IDLE]), Some(0));
        assert_eq!(chosen(&[home(641), IDLE]), Some(1));
    }

    #[test]
    fn a_full_replica_is_left_sooner() {
        let home = |num_others| Offer { matched: 320, num_others, ..IDLE };
        assert_eq!(chosen(&[home(7), IDLE]), Some(0), "there is a slot for it");
        assert_eq!(chosen(&[home(10), IDLE]), Some(1), "three others have to end first");
    }

    #[test]
    fn of_equals_the_one_with_the_emptiest_cache_then_the_first() {
        assert_eq!(chosen(&[Offer { num_filled: 7, ..IDLE }, Offer { num_filled: 3, ..IDLE }]), Some(1));
        assert_eq!(chosen(&[IDLE, IDLE]), Some(0));
    }

    #[test]
    fn those_that_make_no_offer_are_passed_over() {
        assert_eq!(least_work(&[None, Some(Offer { pending: u64::MAX / 2, ..IDLE })]), Some(1));
        assert_eq!(least_work(&[None, None]), None);
        assert_eq!(least_work(&[]), None);
    }

    #[test]
    fn round_robin_takes_turns_whatever_is_cached() {
        let mut placement = Placement::new(PlacementPolicy::RoundRobin);
        let cached = Some(Offer { matched: 320, ..IDLE });
        let offers = [Some(IDLE), None, cached];
        let chosen: Vec<_> = (0..5).map(|_| placement.choose(&offers)).collect();
        assert_eq!(chosen, [Some(0), Some(2), Some(0), Some(2), Some(0)]);
        assert_eq!(placement.choose(&[None, None]), None);
        assert!(!placement.moves());
    }

    #[test]
    fn a_request_moves_only_for_more_than_it_would_wait_anyway() {
        let here = |pending| Offer { pending, ..IDLE };
        assert!(!pays_to_move(&here(64), &IDLE));
        assert!(pays_to_move(&here(65), &IDLE));
        let known_here = Offer { matched: 320, pending: 65, ..IDLE };
        assert!(!pays_to_move(&known_here, &IDLE), "what is cached is worth waiting for");
    }
}
