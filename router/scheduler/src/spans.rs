//! Puts spans of running sequences into a plan, with blocks for them.

use std::cmp::Reverse;

use crate::draft::PlanDraft;
use crate::event::EventKind;
use crate::request::RequestId;
use crate::running::Running;
use crate::scheduler::Scheduler;
use crate::sent_plan::{PlannedSnapshot, PlannedSpan};

impl Scheduler {
    /// Puts the next `len` positions of a sequence into the plan; blocks for them are there.
    pub(crate) fn plan_span(&mut self, id: RequestId, len: u32, draft: &mut PlanDraft) {
        self.plan_drafting(id, len, 0, draft);
    }

    /// Plans the next `len` positions, and up to `max_drafts` drafts after them. Blocks for all of them are there.
    pub(crate) fn plan_drafting(&mut self, id: RequestId, len: u32, max_drafts: u32, draft: &mut PlanDraft) {
        let Some(running) = self.sequences.running_mut(id) else { return };
        let earliest = running.row().earliest();
        let mut span = running.plan(len, max_drafts, draft.step());
        if self.memory.has_states() {
            let is_point = running.row_mut().reach_point();
            span.snapshot = self.plan_snapshot(&span, earliest, is_point);
        }
        draft.add_span(span);
        self.totals.computed_tokens += u64::from(len);
    }

    /// A place for the state behind a span, if it is to be kept: at a point of its row, and at the end of each block of
    /// output; of an open span, which may begin at `earliest`, if it may reach one.
    fn plan_snapshot(
        &mut self,
        span: &PlannedSpan,
        earliest: u32,
        is_point: bool,
    ) -> Option<PlannedSnapshot> {
        let reached =
            if span.is_open { earliest..span.end + span.max_drafts } else { span.end - 1..span.end };
        let is_rolling = !is_point && span.samples && self.memory.output_end(reached).is_some();
        if !is_point && !is_rolling {
            return None;
        }
        self.memory.take_snapshot().map(|id| PlannedSnapshot { id, is_rolling })
    }

    /// How many of `wanted` tokens may be drafted behind the next position of a sequence that decodes: as many as get
    /// blocks that nobody has to give up.
    pub(crate) fn room_for_drafts(&mut self, id: RequestId, wanted: u32, draft: &mut PlanDraft) -> u32 {
        let Some(running) = self.sequences.running(id) else { return 0 };
        let wanted = wanted.min(running.num_draftable());
        loop {
            let Some(running) = self.sequences.running(id) else { return 0 };
            let room = self.memory.room(running.row()).saturating_sub(1);
            if room >= wanted || !self.append_block(id, draft) {
                return wanted.min(room);
            }
        }
    }

    /// Makes sure that the next position of `id` has a block, if need be at the cost of a younger sequence. False if
    /// it has to wait, or was preempted itself.
    pub(crate) fn make_room(&mut self, id: RequestId, draft: &mut PlanDraft) -> bool {
        loop {
            let Some(running) = self.sequences.running(id) else { return false };
            let is_exact = running.row().is_exact();
            if self.memory.room(running.row()) > 0 || self.append_block(id, draft) {
                return true;
            }
            // Blocks and positions of wrong drafts come back with the steps in flight: waiting for them is worth it.
            if !is_exact || self.memory.awaits_blocks(self.sequences.all_running().map(Running::row)) {
                return false;
            }
            let Some(victim) = self.victim(draft.step()) else { return false };
            self.preempt(victim, draft);
        }
    }

    /// Positions of a prompt that its next span may have. Where a window gave blocks back, it gets others for them.
    pub(crate) fn extend(&mut self, id: RequestId, draft: &mut PlanDraft) -> u32 {
        while self.lacks_blocks(id) && self.append_block(id, draft) {}
        if !self.make_room(id, draft) {
            return 0;
        }
        self.sequences.running(id).map_or(0, |running| self.num_computable(running))
    }

    /// Positions that can be computed next and have blocks.
    pub(crate) fn num_computable(&self, running: &Running) -> u32 {
        running.num_plannable().min(self.memory.room(running.row())).min(running.row().max_span())
    }

    pub(crate) fn lacks_blocks(&self, id: RequestId) -> bool {
        self.sequences.running(id).is_some_and(|running| self.memory.lacks_blocks(running.row()))
    }

    fn append_block(&mut self, id: RequestId, draft: &mut PlanDraft) -> bool {
        let Some(running) = self.sequences.running_mut(id) else { return false };
        let row = running.row_mut();
        let Some(block) = self.memory.append(row.table_mut()) else { return false };
        draft.append(row.slot(), block);
        true
    }

    /// The youngest of the lowest priority that runs, has nothing in this step, and may still be preempted.
    fn victim(&self, step: u64) -> Option<RequestId> {
        let preemptible = self.sequences.all_running().filter(|running| running.is_preemptible(step));
        let victim = preemptible.min_by_key(|running| (running.sequence().priority(), Reverse(running.id())));
        victim.map(Running::id)
    }

    /// Sends a running sequence back to the front of the queue; its tokens stay.
    fn preempt(&mut self, id: RequestId, draft: &mut PlanDraft) {
        self.totals.preemptions += 1;
        draft.add_event(id, EventKind::Preempted);
        self.requeue(id);
        if let Some(sequence) = self.sequences.get_mut(id) {
            sequence.on_preempted();
        }
    }
}
