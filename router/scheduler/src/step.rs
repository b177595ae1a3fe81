//! Makes a plan: decodes first, then admissions, then chunks of prompts.

use std::time::Duration;

use crate::admission::NotYet;
use crate::draft::PlanDraft;
use crate::event::Event;
use crate::pace::{Pace, Prompts, Streams};
use crate::plan::Plan;
use crate::request::RequestId;
use crate::running::Running;
use crate::scheduler::Scheduler;

/// Requests looked at per plan that cannot be admitted yet, before the rest is left for the next plan.
const MAX_PASSED_BY: usize = 16;
/// How long others may be admitted before a request that does not fit for now.
const MAX_BLOCKED: Duration = Duration::from_secs(1);
/// Tokens of prompt that every step computes whatever the decodes take, so that prompts get on.
const MIN_CHUNK: u32 = 4;
/// Tokens of a stream from one pause to the next: so only few of the gaps in a long answer are long.
const PAUSE_EVERY: u32 = 200;

/// What a prompt has to compute; ordered as chunks are given out.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rest {
    /// Positions, fewer the longer the request has waited.
    weighted_len: u64,
    id: RequestId,
    start: u32,
    len: u32,
}

impl Scheduler {
    /// The next step, if there is anything to do and room for another plan in flight.
    pub fn plan(&mut self, now: Duration) -> Option<(Plan, Vec<Event>)> {
        if !self.pipeline.has_room() {
            return None;
        }
        self.now = now;
        self.memory.expire_retained(now);
        let step = self.pipeline.last_step() + 1;
        let mut draft = PlanDraft::new(step, self.config.max_step_tokens, self.sequences.num_running());
        match self.suspects.first() {
            Some(suspect) => self.plan_trial(suspect, &mut draft),
            None => self.plan_batch(&mut draft),
        }
        draft.retire(self.slots.take_retired());
        let (plan, sent, events) = draft.finish()?;
        self.pipeline.push(sent);
        Some((plan, events))
    }

    fn plan_batch(&mut self, draft: &mut PlanDraft) {
        let streams = self.plan_decodes(draft);
        self.admit_waiting(&streams, draft);
        self.plan_chunks(&streams, draft);
    }

    /// One token for each sequence whose prompt is done, oldest first.
    fn plan_decodes(&mut self, draft: &mut PlanDraft) -> Streams {
        let mut streams = Streams::default();
        let decoding = self.sequences.all_running().filter(|running| running.is_decoding());
        for id in decoding.map(Running::id).collect::<Vec<_>>() {
            if draft.budget() > 0 && self.make_room(id, draft) {
                self.plan_span(id, 1, draft);
                self.sequences.running(id).into_iter().for_each(|running| streams.add(running));
            }
        }
        streams
    }

    /// Gives slots to waiting requests while slots and blocks last, in the order of the queue. Others may be admitted
    /// before one that does not fit, for a bounded time.
    fn admit_waiting(&mut self, streams: &Streams, draft: &mut PlanDraft) {
        let mut passed: Vec<RequestId> = Vec::new();
        let mut prompts = self.prompts_under_way();
        while passed.len() < MAX_PASSED_BY
            && self.pace(streams, draft).takes_another(&prompts, draft.budget())
        {
            let Some(id) = self.backlog.next(&passed) else { break };
            match self.admit(id, draft) {
                Ok(()) => self.sequences.running(id).into_iter().for_each(|running| prompts.add(running)),
                Err(NotYet::NoSlot) => break,
                Err(NotYet::Soon) => passed.push(id),
                Err(NotYet::NoBlocks) if self.is_blocked_too_long(id) => break,
                Err(NotYet::NoBlocks) => passed.push(id),
            }
        }
    }

    fn pace<'a>(&'a self, streams: &'a Streams, draft: &PlanDraft) -> Pace<'a> {
        let times = self.pipeline.step_times();
        Pace { times, target: self.config.target_itl, streams, decodes: draft.cost() }
    }

    fn prompts_under_way(&self) -> Prompts {
        let mut prompts = Prompts::default();
        let prefilling = self.sequences.all_running().filter(|running| running.is_prefilling());
        prefilling.for_each(|running| prompts.add(running));
        prompts
    }

    fn is_blocked_too_long(&mut self, id: RequestId) -> bool {
        let now = self.now;
        self.sequences.get_mut(id).is_some_and(|sequence| sequence.on_blocked(now) >= MAX_BLOCKED)
    }

    /// Chunks of prompts, the shortest rest first, as long as the step's budget and time allow. Age makes a rest
    /// count for less, so that long prompts get on beside a stream of short ones.
    fn plan_chunks(&mut self, streams: &Streams, draft: &mut PlanDraft) {
        self.extend_prompts(draft);
        let allowance = self.pace(streams, draft).allowance(&self.prompts_under_way());
        let mut min_len = MIN_CHUNK;
        for rest in self.rests(draft.step()) {
            let longest = rest.len.min(draft.budget());
            let times = self.pipeline.step_times();
            let len =
                allowance.longest_span(times, draft.cost(), rest.start, longest).max(min_len.min(longest));
            if len == 0 {
                break;
            }
            min_len = 0;
            self.plan_span(rest.id, len, draft);
        }
        if allowance.is_pause(self.pipeline.step_times(), draft.cost()) {
            self.note_pause(streams, draft);
        }
    }

    /// Blocks for the prompts under way that gave some back behind a window.
    fn extend_prompts(&mut self, draft: &mut PlanDraft) {
        let prefilling = self.sequences.all_running().filter(|running| running.is_prefilling());
        for id in prefilling.map(Running::id).collect::<Vec<_>>() {
            if self.lacks_blocks(id) {
                self.extend(id, draft);
            }
        }
    }

    /// What running sequences have to compute that have nothing in this step yet, in the order of their chunks.
    fn rests(&self, step: u64) -> Vec<Rest> {
        let idle = self.sequences.all_running().filter(|running| running.row().last_step() < step);
        // A decode for which there was no room has no block for its next position.
        let mut rests: Vec<_> = idle.map(|running| self.rest(running)).filter(|rest| rest.len > 0).collect();
        rests.sort_unstable();
        rests
    }

    fn rest(&self, running: &Running) -> Rest {
        let len = self.num_computable(running);
        let age_ms = running.sequence().age(self.now).as_millis() as u64;
        let weighted_len = u64::from(len) * 1000 * 1000 / (1000 + age_ms);
        Rest { weighted_len, id: running.id(), start: running.row().planned(), len }
    }

    /// The streams of this step pause in it, and not again for a while.
    fn note_pause(&mut self, streams: &Streams, draft: &PlanDraft) {
        for decode in draft.first_spans(streams.count()) {
            if let Some(sequence) = self.sequences.get_mut(decode.id) {
                sequence.on_paused(PAUSE_EVERY);
            }
        }
    }
}
