//! Turns, where the layers are divided into stages: the running sequences form as many groups as there are stages, of
//! about equal cost, so that each stage computes a step of another group.
//!
//! Groups are not stored: a group is the sequences that get a token of the same plan. A plan takes the sequences that
//! wait longest for a token, up to a fair share of the cost. So groups become equal again when sequences come and go.
//!
//! ```text
//!   stage 1   a b | c d | a b | c d          with two stages, a plan is made for a and b
//!   stage 2         a b | c d | a b          while c and d are in the other stage
//! ```

use crate::draft::PlanDraft;
use crate::pace::Streams;
use crate::request::RequestId;
use crate::running::Running;
use crate::scheduler::Scheduler;
use crate::step_time::StepCost;

/// A sequence that decodes, and what its next position costs beside others.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: RequestId,
    last_step: u64,
    cost: f64,
}

impl Scheduler {
    /// The sequences that get a token of the next plan, out of those in `decoding`, oldest first. The others are added to
    /// `streams`, as they are elsewhere.
    pub(crate) fn turn(&self, decoding: &[RequestId], streams: &mut Streams) -> Vec<RequestId> {
        let num_stages = self.pipeline.num_stages();
        let all = self.candidates(decoding);
        let busy = self.pipeline.busy();
        let mut free: Vec<_> = all.iter().copied().filter(|it| !busy.contains(&it.id)).collect();
        free.sort_by_key(|it| (it.last_step, it.id));
        let num_turns = num_stages - self.pipeline.num_groups_busy();
        let most = share(&all, num_stages) + longest(&all) / 2.0;
        let taken = first_of(&free, most, share(&free, num_turns));
        let turn = in_order(decoding, &free[..taken]);
        let elsewhere = decoding.iter().filter(|id| !turn.contains(id));
        let elsewhere = elsewhere.filter_map(|id| self.sequences.running(*id));
        elsewhere.for_each(|running| streams.add_elsewhere(running));
        turn
    }

    /// Plans the group that waits longest for its next token, where nothing else is to be computed: its tokens are then
    /// there on the device.
    pub(crate) fn plan_ahead(
        &mut self,
        decoding: &[RequestId],
        streams: &mut Streams,
        draft: &mut PlanDraft,
    ) {
        let may_sample = |it: &Candidate| self.pipeline.may_sample(it.id);
        let next: Vec<_> = self.candidates(decoding).into_iter().filter(may_sample).collect();
        let Some(oldest) = next.iter().map(|it| it.last_step).min() else { return };
        let group: Vec<_> = next.into_iter().filter(|it| it.last_step == oldest).collect();
        self.plan_group(&in_order(decoding, &group), streams, draft);
    }

    fn candidates(&self, decoding: &[RequestId]) -> Vec<Candidate> {
        let times = self.pipeline.step_times();
        let candidate = |running: &Running| {
            let next = StepCost::of_span(running.row().planned(), 1);
            Candidate { id: running.id(), last_step: running.row().last_step(), cost: times.added_by(next) }
        };
        decoding.iter().filter_map(|id| self.sequences.running(*id)).map(candidate).collect()
    }
}

/// The share of the cost that each of `count` groups has.
fn share(all: &[Candidate], count: usize) -> f64 {
    all.iter().map(|it| it.cost).sum::<f64>() / count.max(1) as f64
}

fn longest(all: &[Candidate]) -> f64 {
    all.iter().map(|it| it.cost).fold(0.0, f64::max)
}

/// How many of the first sequences come nearest to `share` without passing `most`; at least one.
fn first_of(free: &[Candidate], most: f64, share: f64) -> usize {
    let mut cost = 0.0;
    for (index, it) in free.iter().enumerate() {
        let middle = cost + it.cost / 2.0;
        if index > 0 && (middle > share || middle >= most) {
            return index;
        }
        cost += it.cost;
    }
    free.len()
}

/// The taken sequences, in the order in which sequences are planned.
fn in_order(decoding: &[RequestId], taken: &[Candidate]) -> Vec<RequestId> {
    let ids: std::collections::BTreeSet<_> = taken.iter().map(|it| it.id).collect();
    decoding.iter().copied().filter(|id| ids.contains(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(costs: &[f64]) -> Vec<Candidate> {
        let candidate = |(number, cost): (usize, &f64)| Candidate {
            id: RequestId(number as u64),
            last_step: 0,
            cost: *cost,
        };
        costs.iter().enumerate().map(candidate).collect()
    }

    /// The sizes of the groups that sequences of these costs make, one turn after the other.
    fn sizes(costs: &[f64], num_stages: usize) -> Vec<usize> {
        let all = candidates(costs);
        let most = share(&all, num_stages) + longest(&all) / 2.0;
        let mut free = all.as_slice();
        let turns = (1..=num_stages).rev().map(|num_turns| {
            let taken = first_of(free, most, share(free, num_turns));
            free = &free[taken..];
            taken
        });
        turns.collect()
    }

    #[test]
    fn groups_are_even() {
        assert_eq!(sizes(&[1.0; 8], 2), [4, 4]);
        assert_eq!(sizes(&[1.0; 3], 2), [2, 1]);
        assert_eq!(sizes(&[1.0; 5], 4), [1, 1, 2, 1]);
        assert_eq!(sizes(&[1.0; 1], 2), [1, 0]);
        for count in 1..40 {
            let found = sizes(&vec![1.0; count], 4);
            assert_eq!(found.iter().sum::<usize>(), count, "{found:?}");
            assert!(found.iter().all(|size| *size <= count.div_ceil(4)), "{found:?}");
        }
    }

    #[test]
    fn a_long_sequence_counts_for_several() {
        assert_eq!(sizes(&[4.0, 1.0, 1.0, 1.0, 1.0], 2), [1, 4]);
    }

    #[test]
    fn a_group_that_became_too_large_gives_some_away() {
        let (all, large) = (candidates(&[1.0; 8]), candidates(&[1.0; 6]));
        let most = share(&all, 2) + longest(&all) / 2.0;
        assert_eq!(first_of(&large, most, share(&large, 1)), 4);
    }
}
