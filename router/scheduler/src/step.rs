//! Makes a plan: decodes first, then admissions, then chunks of prompts.

use std::time::Duration;

use crate::adapters::{Gate, MAX_WITHOUT_PLACE};
use crate::admission::NotYet;
use crate::config::SchedulerConfig;
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
/// Tokens of a stream from one pause to the next: so only few of the gaps in a long output are long.
const PAUSE_EVERY: u32 = 200;

/// The positions that a prompt still has to compute; ordered as chunks are given out.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rest {
    /// Positions, fewer the longer the request has waited.
    weighted_len: u64,
    id: RequestId,
    start: u32,
    len: u32,
}

/// How many tokens a step may draft.
#[derive(Debug)]
struct DraftBudget {
    for_each: u32,
    in_all: u32,
}

impl DraftBudget {
    /// The drafts for which `num_decodes` sequences leave room in a step's `budget`; none if too many decode.
    fn new(config: &SchedulerConfig, num_decodes: usize, budget: u32) -> Self {
        let for_each = if num_decodes <= config.max_drafting as usize { config.max_drafts } else { 0 };
        Self { for_each, in_all: budget.saturating_sub(num_decodes as u32 + MIN_CHUNK) }
    }

    /// The number of tokens that may be drafted for the next sequence.
    fn next(&self) -> u32 {
        self.for_each.min(self.in_all)
    }

    fn take(&mut self, count: u32) {
        self.in_all -= count;
    }
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
        let decoding = self.sequences.all_running().filter(|running| running.is_decoding());
        let decoding: Vec<_> = decoding.filter(|it| !self.is_to_pass_on(it)).map(Running::id).collect();
        let mut streams = self.plan_decodes(&decoding, draft);
        self.admit_waiting(&streams, draft);
        self.plan_chunks(&streams, draft);
        if self.has_turns() && draft.is_empty() {
            self.plan_ahead(&decoding, &mut streams, draft);
        }
    }

    /// One token for each sequence whose prompt is done and whose turn it is, oldest first, and drafts behind them.
    fn plan_decodes(&mut self, decoding: &[RequestId], draft: &mut PlanDraft) -> Streams {
        let mut streams = Streams::default();
        if self.has_turns() {
            let turn = self.turn(decoding, &mut streams);
            self.plan_group(&turn, &mut streams, draft);
        } else {
            self.plan_group(decoding, &mut streams, draft);
        }
        streams.add_cost(draft.cost());
        streams
    }

    /// Whether not all sequences get a token of each plan: they take turns where there are several stages.
    fn has_turns(&self) -> bool {
        self.pipeline.num_stages() > 1
    }

    /// One token for each of these, and drafts behind them.
    pub(crate) fn plan_group(&mut self, group: &[RequestId], streams: &mut Streams, draft: &mut PlanDraft) {
        let mut drafts = DraftBudget::new(&self.config, group.len(), draft.budget());
        for id in group.iter().copied() {
            if draft.budget() > 0 && self.make_room(id, draft) {
                let max_drafts = self.room_for_drafts(id, drafts.next(), draft);
                drafts.take(max_drafts);
                self.plan_drafting(id, 1, max_drafts, draft);
                self.sequences.running(id).into_iter().for_each(|running| streams.add(running));
            }
        }
    }

    /// Gives slots to waiting requests while slots and blocks last, in the order of the queue. Others may be admitted
    /// before one that does not fit, for a bounded time.
    fn admit_waiting(&mut self, streams: &Streams, draft: &mut PlanDraft) {
        let gate = self.adapter_gate();
        let mut passed: Vec<RequestId> = Vec::new();
        let mut prompts = self.prompts_under_way();
        while passed.len() < MAX_PASSED_BY
            && self.pace(streams, draft).takes_another(&prompts, draft.budget())
        {
            let Some(id) = self.next_waiting(&passed, &gate) else { break };
            match self.admit(id, draft) {
                Ok(()) => self.sequences.running(id).into_iter().for_each(|running| prompts.add(running)),
                Err(NotYet::NoSlot) => break,
                Err(NotYet::Soon) => passed.push(id),
                Err(NotYet::NoBlocks) if self.is_blocked_too_long(id) => break,
                Err(NotYet::NoBlocks) => passed.push(id),
            }
        }
    }

    /// The request that should run next, but for those in `passed` and those whose adapter has no place.
    fn next_waiting(&self, passed: &[RequestId], gate: &Gate) -> Option<RequestId> {
        let may_run = |id: &RequestId| {
            let sequence = self.sequences.waiting(*id);
            sequence.is_none_or(|sequence| self.adapters.may_enter(sequence.adapter(), gate))
        };
        let stays = |id: &RequestId| !self.transfers.take_away(*id);
        self.backlog.iter().find(|id| !passed.contains(id) && stays(id) && may_run(id))
    }

    /// Which adapters may have a place in this plan. Requests that wait for a place are noted, and for the first of
    /// them that has waited too long a place is cleared.
    fn adapter_gate(&mut self) -> Gate {
        if !self.adapters.are_short() {
            return Gate::default();
        }
        let mut overdue = None;
        for id in self.backlog.iter() {
            let Some(sequence) = self.sequences.get_mut(id) else { continue };
            let Some(adapter) = sequence.adapter().filter(|it| !self.adapters.has(it)).cloned() else {
                continue;
            };
            if sequence.on_blocked(self.now) >= MAX_WITHOUT_PLACE && overdue.is_none() {
                overdue = Some(adapter);
            }
        }
        overdue.map_or_else(Gate::default, |adapter| self.adapters.gate_for(&adapter, self.now))
    }

    fn pace<'a>(&'a self, streams: &'a Streams, draft: &PlanDraft) -> Pace<'a> {
        let times = self.pipeline.step_times();
        let decodes = match self.pipeline.num_stages() {
            1 => draft.cost(),
            num_steps => streams.cost_of_step(num_steps),
        };
        let SchedulerConfig { target_itl: target, pauses_streams, .. } = self.config;
        Pace { times, target, pauses_streams, streams, decodes }
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
        for rest in self.rests(streams, draft.step()) {
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
            self.note_pause(streams);
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

    /// The rest of each running sequence that has nothing in this step yet, in the order of their chunks.
    fn rests(&self, streams: &Streams, step: u64) -> Vec<Rest> {
        let idle = self.sequences.all_running().filter(|running| running.row().last_step() < step);
        let staying = idle.filter(|it| !self.is_to_pass_on(it) && !streams.are_elsewhere(it.id()));
        // A decode for which there was no room has no block for its next position.
        let mut rests: Vec<_> =
            staying.map(|running| self.rest(running)).filter(|rest| rest.len > 0).collect();
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
    fn note_pause(&mut self, streams: &Streams) {
        for id in streams.ids().iter().copied() {
            if let Some(sequence) = self.sequences.get_mut(id) {
                sequence.on_paused(PAUSE_EVERY);
            }
        }
    }
}
