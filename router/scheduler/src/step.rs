//! Makes a plan: decodes first, then admissions, then chunks of prompts.

use std::time::Duration;

use crate::pace::Prompts;
use crate::plan::{BlockId, Plan, Span};
use crate::request::RequestId;
use crate::sequence::{Row, Sequence};
use crate::step_time::StepCost;
use crate::{Event, EventKind, InFlight, MAX_PLANS_IN_FLIGHT, PlannedSpan, Scheduler};

/// Requests looked at per plan that cannot be admitted yet, before the rest is left for the next plan.
const MAX_PASSED_BY: usize = 16;
/// How long others may pass a request that does not fit for now.
const MAX_BLOCKED: Duration = Duration::from_secs(1);
/// After so many preemptions a request gets all the memory that it may need set aside.
pub(super) const MAX_PREEMPTIONS: u32 = 3;
/// Tokens of prompt that every step computes whatever the decodes take, so that prompts get on.
const MIN_CHUNK: u32 = 4;

/// A plan in the making.
pub(super) struct StepBuilder {
    plan: Plan,
    pub(super) planned: Vec<PlannedSpan>,
    pub(super) budget: u32,
    pub(super) cost: StepCost,
    events: Vec<Event>,
}

/// Why a waiting request is not admitted in this step.
pub(super) enum NotYet {
    /// It waits for blocks that another is about to publish; or for its own last outcome.
    Soon,
    /// There is no memory for it.
    NoBlocks,
    /// There is nothing left for anybody.
    Full,
}

/// What the cache offers a sequence.
#[derive(Default)]
struct Shared {
    /// Published blocks of its prefix.
    blocks: Vec<BlockId>,
    /// A block to copy, and whose: it holds the rest of the prompt but for the last token.
    copied: Option<(RequestId, BlockId)>,
    /// Positions that need not be computed.
    len: u32,
}

impl Scheduler {
    /// The next step, if there is anything to do and room for another plan in flight.
    pub fn plan(&mut self, now: Duration) -> Option<(Plan, Vec<Event>)> {
        if self.in_flight.len() >= MAX_PLANS_IN_FLIGHT || self.awaits_answer() {
            return None;
        }
        self.now = now;
        self.blocks.expire_retained(now);
        let mut step = StepBuilder {
            plan: Plan { step: self.last_step + 1, ..Plan::default() },
            planned: Vec::with_capacity(self.running.len()),
            budget: self.config.max_step_tokens,
            cost: StepCost::default(),
            events: Vec::new(),
        };
        match self.on_trial() {
            Some((id, passes_at)) => self.plan_trial(id, passes_at, &mut step),
            None => {
                self.plan_decodes(&mut step);
                self.admit_waiting(&mut step);
                self.plan_chunks(&mut step);
            }
        }
        step.plan.retired = std::mem::take(&mut self.retired);
        if step.plan.spans.is_empty() && step.plan.retired.is_empty() {
            return None;
        }
        self.last_step = step.plan.step;
        self.in_flight.push_back(InFlight { step: step.plan.step, spans: step.planned, cost: step.cost });
        Some((step.plan, step.events))
    }

    /// One token for each sequence whose prompt is done, oldest first.
    fn plan_decodes(&mut self, step: &mut StepBuilder) {
        for id in self.running.clone() {
            let decodes = self.sequences.get(&id).is_some_and(|s| s.num_plannable() == 1);
            if decodes && step.budget > 0 && self.make_room(id, step) {
                self.plan_span(id, 1, step);
            }
        }
    }

    /// Makes sure that the next position of `id` has a block, if need be at the cost of a younger sequence. False if
    /// it has to wait, or had to give way itself.
    pub(super) fn make_room(&mut self, id: RequestId, step: &mut StepBuilder) -> bool {
        loop {
            let Some(row) = self.sequences.get(&id).and_then(|s| s.row.as_ref()) else { return false };
            if row.room(self.config.block_size) > 0 || self.append_block(id, step) {
                return true;
            }
            // Blocks that come back with the steps in flight are worth waiting for.
            if self.blocks.num_fenced() > 0 || self.gives_back_soon() {
                return false;
            }
            let Some(victim) = self.victim(step.plan.step) else { return false };
            self.preempt(victim, step);
        }
    }

    /// Whether a step in flight moves some sequence's window past a block.
    fn gives_back_soon(&self) -> bool {
        let mut rows = self.running.iter().filter_map(|id| self.sequences.get(id)?.row.as_ref());
        rows.any(|row| self.window.num_behind(row.planned) > row.num_behind)
    }

    /// One more block for a running sequence, if there is one that is not set aside for another.
    fn append_block(&mut self, id: RequestId, step: &mut StepBuilder) -> bool {
        let Some(row) = self.sequences.get_mut(&id).and_then(|s| s.row.as_mut()) else { return false };
        let own = row.reserved.min(1);
        if self.blocks.num_available() + own <= self.reserved {
            return false;
        }
        let Some(block) = self.blocks.take(1) else { return false };
        row.reserved -= own;
        self.reserved -= own;
        step.plan.appended.push((row.slot, block.clone()));
        row.blocks.extend(block);
        true
    }

    /// Positions of a prompt that the next span may have. Where a window gave blocks back, it gets others for them.
    pub(super) fn extend(&mut self, id: RequestId, step: &mut StepBuilder) -> u32 {
        while self.lacks_blocks(id) && self.append_block(id, step) {}
        if !self.make_room(id, step) {
            return 0;
        }
        let Some(sequence) = self.sequences.get(&id) else { return 0 };
        let room = sequence.row.as_ref().map_or(0, |row| row.room(self.config.block_size));
        sequence.num_plannable().min(room)
    }

    fn lacks_blocks(&self, id: RequestId) -> bool {
        let row = self.sequences.get(&id).and_then(|sequence| sequence.row.as_ref());
        row.is_some_and(|row| row.blocks.len() < self.window.num_given(row.len, row.num_behind))
    }

    /// The youngest of the lowest priority that runs, has nothing in this step, and may still be preempted.
    fn victim(&self, step: u64) -> Option<RequestId> {
        let eligible = self.running.iter().filter_map(|id| {
            let sequence = self.sequences.get(id)?;
            let row = sequence.row.as_ref()?;
            (row.last_step < step && sequence.num_preemptions < MAX_PREEMPTIONS)
                .then_some((sequence.request.priority, std::cmp::Reverse(*id)))
        });
        eligible.min().map(|(_, std::cmp::Reverse(id))| id)
    }

    /// Sends a running sequence back to the front of the queue; its tokens stay.
    fn preempt(&mut self, id: RequestId, step: &mut StepBuilder) {
        self.totals.preemptions += 1;
        step.events.push(Event { id, kind: EventKind::Preempted });
        self.vacate(id);
        self.queue.push_resuming(id);
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.num_preemptions += 1;
        }
    }

    /// Gives slots to waiting requests while slots and blocks last, in the order of the queue; who does not fit is
    /// passed by for a bounded time.
    fn admit_waiting(&mut self, step: &mut StepBuilder) {
        let mut passed: Vec<RequestId> = Vec::new();
        let mut prompts = self.prompts_under_way();
        while self.takes_another(&prompts, step) && passed.len() < MAX_PASSED_BY {
            let next = self.queue.iter().find(|id| !passed.contains(id));
            let Some(id) = next else { break };
            match self.admit(id, step) {
                Ok(()) => self.sequences.get(&id).into_iter().for_each(|sequence| prompts.add(sequence)),
                Err(NotYet::Full) => break,
                Err(NotYet::Soon) => passed.push(id),
                Err(NotYet::NoBlocks) if self.is_blocked_too_long(id) => break,
                Err(NotYet::NoBlocks) => passed.push(id),
            }
        }
    }

    fn prompts_under_way(&self) -> Prompts {
        let running = self.running.iter().filter_map(|id| self.sequences.get(id));
        let mut prompts = Prompts::default();
        running.filter(|sequence| sequence.num_plannable() > 1).for_each(|sequence| prompts.add(sequence));
        prompts
    }

    fn is_blocked_too_long(&mut self, id: RequestId) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else { return false };
        let since = *sequence.blocked_since.get_or_insert(self.now);
        self.now.saturating_sub(since) >= MAX_BLOCKED
    }

    /// Gives a sequence a slot and blocks for all its known tokens, or for as many as are to be held at a time.
    pub(super) fn admit(&mut self, id: RequestId, step: &mut StepBuilder) -> Result<(), NotYet> {
        let Some(sequence) = self.sequences.get(&id) else { return Err(NotYet::Soon) };
        if self.free_slots.is_empty() {
            return Err(NotYet::Full);
        }
        // A token in flight from before its preemption is still to come: without it, it would be sampled twice.
        if sequence.num_in_flight > 0 {
            return Err(NotYet::Soon);
        }
        let shared = self.shared(sequence)?;
        let num_behind = self.window.num_behind(shared.len);
        let (behind, seen) = shared.blocks.split_at(num_behind);
        let num_given = self.window.num_given(sequence.len(), num_behind);
        let num_new = num_given - shared.blocks.len();
        let reserved = match sequence.num_preemptions >= MAX_PREEMPTIONS {
            true => self.window.num_given(sequence.max_len(), num_behind) - num_given,
            false => 0,
        };
        let claimed = self.blocks.num_available_of(seen) + num_new + reserved;
        if self.blocks.num_available() < claimed + self.reserved + self.expected_growth(sequence) {
            return Err(NotYet::NoBlocks);
        }
        self.blocks.share(seen);
        self.blocks.touch(behind);
        let Some(new) = self.blocks.take(num_new) else { return Err(NotYet::NoBlocks) };
        let Some(slot) = self.free_slots.pop() else { return Err(NotYet::Full) };
        let copied = shared.copied.zip(new.first().copied());
        self.reserved += reserved;
        let num_shared = shared.blocks.len();
        let blocks: Vec<BlockId> = shared.blocks.into_iter().chain(new).collect();
        step.plan.admitted.push(sequence.admission(slot, &blocks, &self.config.eos_token_ids));
        let row = Row {
            slot,
            blocks,
            num_behind,
            planned: shared.len,
            confirmed: shared.len,
            num_published: num_shared,
            len: sequence.len(),
            last_step: step.plan.step - 1,
            reserved,
        };
        self.start(id, row, step);
        if let Some(((donor, from), to)) = copied {
            self.copy_block(donor, from, to, step);
        }
        Ok(())
    }

    /// Copies a block of a running sequence, which must stay what it is until the step is answered.
    fn copy_block(&mut self, donor: RequestId, from: BlockId, to: BlockId, step: &mut StepBuilder) {
        step.plan.copied.push((from, to));
        if let Some(row) = self.sequences.get_mut(&donor).and_then(|s| s.row.as_mut()) {
            row.last_step = row.last_step.max(step.plan.step);
        }
    }

    /// Notes all that follows from a sequence now running with `row`.
    fn start(&mut self, id: RequestId, row: Row, step: &mut StepBuilder) {
        let position = self.running.partition_point(|other| *other < id);
        self.running.insert(position, id);
        let Some(mut sequence) = self.sequences.remove(&id) else { return };
        let cached_tokens = row.planned;
        self.leave_queue(&sequence);
        if self.config.prefix_caching {
            for key in &sequence.keys[row.num_published..] {
                self.pending.entry(*key).or_insert(id);
            }
            self.donors.entry(sequence.prompt_key).or_insert(id);
        }
        self.queue.charge(&sequence.ticket.tenant, u64::from(row.len - cached_tokens));
        self.totals.admitted_tokens += u64::from(row.len);
        self.totals.cached_tokens += u64::from(cached_tokens);
        sequence.blocked_since = None;
        sequence.row = Some(row);
        if !std::mem::replace(&mut sequence.announced, true) {
            let queued = self.now.saturating_sub(sequence.ticket.arrived);
            step.events.push(Event { id, kind: EventKind::Admitted { queued, cached_tokens } });
        }
        self.sequences.insert(id, sequence);
    }

    /// What of a sequence is computed already, or `Soon` if more of it is being computed now.
    fn shared(&self, sequence: &Sequence) -> Result<Shared, NotYet> {
        let mut shared = Shared::default();
        if !self.config.prefix_caching || !sequence.may_share() {
            return Ok(shared);
        }
        // The last token is always computed: its logits are what the sequence runs for.
        let block_size = self.config.block_size;
        let num_shareable = (sequence.len() - 1) / block_size;
        let keys = &sequence.keys[..num_shareable as usize];
        shared.blocks = self.blocks.index().lookup(sequence.root, keys, &sequence.tokens);
        shared.len = shared.blocks.len() as u32 * block_size;
        if keys.get(shared.blocks.len()).is_some_and(|next| self.pending.contains_key(next)) {
            return Err(NotYet::Soon);
        }
        if shared.len == num_shareable * block_size && sequence.num_generated() == 0 {
            self.share_last_block(sequence, &mut shared)?;
        }
        Ok(shared)
    }

    /// If a sequence with the same prompt runs, the block with the prompt's end is copied, not computed.
    fn share_last_block(&self, sequence: &Sequence, shared: &mut Shared) -> Result<(), NotYet> {
        let wanted = sequence.len() - 1;
        let donor = self.donors.get(&sequence.prompt_key);
        let Some((id, donor)) = donor.and_then(|id| Some((*id, self.sequences.get(id)?))) else {
            return Ok(());
        };
        let same = donor.root == sequence.root && donor.request.prompt == sequence.request.prompt;
        let Some(row) = donor.row.as_ref().filter(|_| same && wanted > shared.len) else { return Ok(()) };
        if row.confirmed < wanted {
            return Err(NotYet::Soon);
        }
        if row.num_behind > shared.blocks.len() {
            return Ok(());
        }
        shared.copied = Some((id, row.blocks[shared.blocks.len()]));
        shared.len = wanted;
        Ok(())
    }

    /// Blocks that the running sequences and this one will probably want before one of them ends. Nothing if it
    /// would run alone: then it has to run.
    fn expected_growth(&self, candidate: &Sequence) -> usize {
        if self.running.is_empty() {
            return 0;
        }
        let running = self.running.iter().filter_map(|id| self.sequences.get(id));
        running.chain([candidate]).map(|sequence| self.growth_of(sequence)).sum()
    }

    fn growth_of(&self, sequence: &Sequence) -> usize {
        if sequence.row.as_ref().is_some_and(|row| row.reserved > 0) {
            return 0;
        }
        let expected = (self.output_len as u32).saturating_sub(sequence.num_generated());
        let expected = expected.max(self.config.block_size);
        let longest = sequence.len().saturating_add(expected).min(sequence.max_len());
        let prefilling = sequence.row.as_ref().filter(|_| sequence.num_plannable() > 1);
        let held = prefilling.map_or_else(|| self.window.num_held(sequence.len()), |row| row.held().len());
        self.window.num_held(longest).saturating_sub(held)
    }

    /// Chunks of prompts, the shortest rest first, as long as the step's budget and time allow. Age makes a rest
    /// count for less, so that long prompts get on beside a stream of short ones.
    fn plan_chunks(&mut self, step: &mut StepBuilder) {
        self.extend_prompts(step);
        let allowance = self.allowance(&self.prompts_under_way(), step);
        let mut is_first = true;
        for (_, id, start, rest) in self.prefilling(step.plan.step) {
            let longest = rest.min(step.budget);
            let len = match allowance.micros.is_finite() {
                true => self.step_times.longest_span(
                    step.cost,
                    start,
                    longest,
                    (allowance.micros, allowance.further),
                ),
                false => longest,
            };
            let len = if is_first { len.max(MIN_CHUNK.min(longest)) } else { len };
            if len == 0 {
                break;
            }
            is_first = false;
            self.plan_span(id, len, step);
        }
        self.note_pause(allowance, step);
    }

    fn extend_prompts(&mut self, step: &mut StepBuilder) {
        for id in self.running.clone() {
            if self.lacks_blocks(id) && self.sequences.get(&id).is_some_and(|s| s.num_plannable() > 1) {
                self.extend(id, step);
            }
        }
    }

    /// Running sequences with positions to compute, none of them in this step yet, in the order of their chunks.
    fn prefilling(&self, step: u64) -> Vec<(u64, RequestId, u32, u32)> {
        let rows = self.running.iter().filter_map(|id| {
            let sequence = self.sequences.get(id)?;
            let row = sequence.row.as_ref().filter(|row| row.last_step < step)?;
            // A decode for which there was no room has no block for its next position.
            let rest = sequence.num_plannable().min(row.room(self.config.block_size));
            let age_ms = self.now.saturating_sub(sequence.ticket.arrived).as_millis() as u64;
            let urgency = u64::from(rest) * 1000 * 1000 / (1000 + age_ms);
            (rest > 0).then_some((urgency, *id, row.planned, rest))
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_unstable();
        rows
    }

    /// Puts a span into the step; blocks for it are there.
    pub(super) fn plan_span(&mut self, id: RequestId, len: u32, step: &mut StepBuilder) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(row) = sequence.row.as_mut() else { return };
        let start = row.planned;
        row.planned += len;
        let samples = row.planned == row.len;
        row.len += u32::from(samples);
        row.last_step = step.plan.step;
        sequence.num_in_flight += 1;
        self.totals.computed_tokens += u64::from(len);
        step.budget -= len;
        step.cost = step.cost.plus(StepCost::of_span(start, len));
        step.plan.spans.push(Span { slot: row.slot, start, len });
        step.planned.push(PlannedSpan { id, slot: row.slot, start, end: start + len, samples });
    }
}
