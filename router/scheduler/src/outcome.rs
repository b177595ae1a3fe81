//! Takes in what the shards answer: tokens, errors and what became certain by it.

use crate::event::{Event, EventKind};
use crate::pipeline::Mismatch;
use crate::plan::{Outcome, PromptScores, Sampled, SlotId};
use crate::request::{Failure, RequestId};
use crate::scheduler::Scheduler;
use crate::sent_plan::SentPlan;

impl Scheduler {
    /// Takes in the answer to the oldest plan in flight.
    pub fn on_outcome(&mut self, outcome: Outcome) -> Result<Vec<Event>, Mismatch> {
        let plan = self.pipeline.answer(&outcome)?;
        let mut events = Vec::with_capacity(plan.spans().len());
        self.take_prompt_scores(&plan, outcome.prompt_scores);
        self.take_errors(&plan, outcome.errors, &mut events);
        self.confirm(&plan, &outcome.late);
        self.take_late(&plan, &outcome.late);
        self.memory.on_answered(plan.step());
        self.take_tokens(&plan, outcome.sampled, &mut events);
        Ok(events)
    }

    fn take_prompt_scores(&mut self, plan: &SentPlan, scores: Vec<PromptScores>) {
        for part in scores {
            let sequence = plan.request_in(part.slot).and_then(|id| self.sequences.get_mut(id));
            if let Some(sequence) = sequence {
                sequence.keep_prompt_scores(part.start, part.scores);
            }
        }
    }

    fn take_errors(&mut self, plan: &SentPlan, errors: Vec<(SlotId, String)>, events: &mut Vec<Event>) {
        for (slot, message) in errors {
            let Some(id) = plan.request_in(slot).filter(|id| self.sequences.contains(*id)) else { continue };
            // What it computed may be what made it fail: no other request may share it.
            if let Some(running) = self.sequences.running(id) {
                self.memory.distrust(running.row());
            }
            events.push(Event { id, kind: EventKind::Failed(Failure::Request(message)) });
            self.on_cancel(id);
        }
    }

    /// The spans of a plan are computed. The last position of a late one is computed once more.
    fn confirm(&mut self, plan: &SentPlan, late: &[SlotId]) {
        for span in plan.spans() {
            let Some(running) = self.sequences.on_answered(span.id) else { continue };
            if span.is_void {
                continue;
            }
            let (sequence, row) = running.with_row_mut();
            let is_late = span.samples && late.contains(&span.slot);
            let end = span.end - u32::from(is_late);
            self.memory.confirm(sequence, row, end, self.now);
        }
    }

    /// Slots that sat out the step: their last position is planned again.
    fn take_late(&mut self, plan: &SentPlan, late: &[SlotId]) {
        for span in plan.sampling_spans().filter(|span| late.contains(&span.slot)) {
            self.pipeline.make_void(span.id);
            if let Some(running) = self.sequences.running_mut(span.id) {
                running.row_mut().rewind(span.end - 1);
            }
        }
    }

    fn take_tokens(&mut self, plan: &SentPlan, sampled: Vec<Sampled>, events: &mut Vec<Event>) {
        let mut sampled = sampled.into_iter().peekable();
        for span in plan.sampling_spans() {
            // A slot that failed or was late has no token.
            let Some(token) = sampled.next_if(|token| token.slot == span.slot) else { continue };
            self.take_token(span.id, token, events);
        }
    }

    fn take_token(&mut self, id: RequestId, token: Sampled, events: &mut Vec<Event>) {
        // A request that ended while this was in flight: the token is beyond its end.
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        let scores = sequence.take_prompt_scores();
        events.extend(scores.map(|scores| Event { id, kind: EventKind::PromptLogprobs(scores) }));
        let finish = sequence.push(token.id, &self.config.eos_token_ids, &self.keys);
        if let Some(cost) = sequence.take_due_cost() {
            self.backlog.charge(sequence.tenant(), cost);
        }
        events.push(Event { id, kind: EventKind::Token(token, finish) });
        if finish.is_some() {
            self.output_lengths.observe(sequence.num_generated());
            self.on_cancel(id);
        } else {
            let len = sequence.len();
            self.end_trial_if_passed(id, len);
        }
    }
}
