//! Takes in what the shards answer: tokens, errors and what became certain by it.

use std::ops::Range;

use crate::event::{Event, EventKind};
use crate::pipeline::Mismatch;
use crate::plan::{Outcome, PromptScores, Sampled, SlotId};
use crate::request::{Failure, RequestId};
use crate::scheduler::Scheduler;
use crate::sent_plan::{PlannedSpan, SentPlan};

/// The tokens of a span's outcome.
#[derive(Debug, Default, Clone, Copy)]
struct Tokens {
    num_sampled: u32,
    /// The tokens that the request takes: all of them, up to its end. Nobody gets to know the tokens after its end.
    num_taken: u32,
    has_end: bool,
    /// Whether any that the request takes was drafted, or proved a draft wrong.
    has_drafts: bool,
}

impl Tokens {
    /// The positions that an open span computed and the shards count, also those beyond the end of its request.
    fn positions(self, span: &PlannedSpan) -> Range<u32> {
        span.start..span.start + self.num_sampled
    }
}

/// A request that got tokens, and may end by them or pass as a suspect.
struct Grown {
    id: RequestId,
    has_ended: bool,
}

impl Scheduler {
    /// Takes in the answer to the oldest plan in flight.
    pub fn on_outcome(&mut self, outcome: Outcome) -> Result<Vec<Event>, Mismatch> {
        let plan = self.pipeline.answer(&outcome)?;
        let mut events = Vec::with_capacity(plan.spans().len());
        self.take_prompt_scores(&plan, outcome.prompt_scores);
        self.take_errors(&plan, outcome.errors, &mut events);
        let grown = self.take_spans(&plan, outcome.sampled, &outcome.late, &mut events);
        self.take_late(&plan, &outcome.late);
        self.memory.on_answered(plan.step());
        grown.into_iter().for_each(|id| self.end_if_due(id));
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
            // The data that it computed may have made it fail: no other request may share it.
            if let Some(running) = self.sequences.running(id) {
                self.memory.distrust(id, running.row());
            }
            events.push(Event { id, kind: EventKind::Failed(Failure::Request(message)) });
            self.on_cancel(id);
        }
    }

    /// Slots that sat out the step: their last position is planned again, if it is not already. An open span in flight
    /// begins where its slot stands, so it computes that position.
    fn take_late(&mut self, plan: &SentPlan, late: &[SlotId]) {
        for span in plan.sampling_spans().filter(|span| late.contains(&span.slot)) {
            let is_planned = self.pipeline.has_open(span.id);
            if is_planned {
                self.pipeline.take_back(span.id, 1);
            } else {
                self.pipeline.make_void(span.id);
            }
            match self.sequences.running_mut(span.id) {
                Some(running) if is_planned => running.row_mut().take_back(1),
                Some(running) => running.row_mut().rewind(span.end - 1),
                None => {}
            }
        }
    }

    /// The spans of a plan are computed, and these tokens were sampled behind them. Returns the requests for which more
    /// may follow from that: in most steps there are none, and none is looked up.
    fn take_spans(
        &mut self,
        plan: &SentPlan,
        sampled: Vec<Sampled>,
        late: &[SlotId],
        events: &mut Vec<Event>,
    ) -> Vec<Grown> {
        let mut grown = Vec::new();
        let mut sampled = sampled.into_iter().peekable();
        for span in plan.spans() {
            let mut tokens = Tokens::default();
            // A slot that failed or was late has none.
            while let Some(token) = sampled.next_if(|token| span.gets_tokens() && token.slot == span.slot) {
                tokens.num_sampled += 1;
                tokens.has_drafts |= !tokens.has_end && (token.is_drafted || token.num_rejected > 0);
                if tokens.has_end {
                    continue;
                }
                // It may have left while this was in flight.
                if let Some(is_last) = self.take_token(span.id, token, events) {
                    tokens.num_taken += 1;
                    tokens.has_end = is_last;
                }
            }
            self.totals.drafts += u64::from(tokens.has_drafts);
            self.confirm(span, span.samples && late.contains(&span.slot), tokens);
            if tokens.has_end || (tokens.num_taken > 0 && !self.suspects.is_empty()) {
                grown.push(Grown { id: span.id, has_ended: tokens.has_end });
            }
        }
        grown
    }

    /// A span is computed; what was drafted in vain is not. The last position of a late one is computed once more.
    fn confirm(&mut self, span: &PlannedSpan, is_late: bool, tokens: Tokens) {
        let running = self.sequences.on_answered(span.id).filter(|_| !span.is_void);
        let Some(running) = running else {
            return span.snapshot.into_iter().for_each(|planned| self.memory.give_back_snapshot(planned));
        };
        let (sequence, row) = running.with_row_mut();
        let num_unused = span.max_drafts - tokens.num_sampled.saturating_sub(1);
        row.settle_drafts(span.max_drafts, num_unused);
        let end = span.end + tokens.num_taken.saturating_sub(1) - u32::from(is_late);
        self.memory.confirm(sequence, row, end, self.now);
        if let Some(planned) = span.snapshot {
            let kept = if span.is_open { self.memory.output_end(tokens.positions(span)) } else { Some(end) };
            match kept.filter(|kept| *kept <= end && !is_late) {
                Some(kept) => self.memory.keep_snapshot(sequence, row, planned, kept),
                None => self.memory.give_back_snapshot(planned),
            }
        }
        if num_unused > 0 {
            self.pipeline.take_back(span.id, num_unused);
        }
    }

    /// One more token of a request, if it is still known; whether it is its last.
    fn take_token(&mut self, id: RequestId, token: Sampled, events: &mut Vec<Event>) -> Option<bool> {
        let sequence = self.sequences.get_mut(id)?;
        let scores = sequence.take_prompt_scores();
        events.extend(scores.map(|scores| Event { id, kind: EventKind::PromptLogprobs(scores) }));
        let finish = sequence.push(token.id, &self.config.eos_token_ids, &self.keys);
        if let Some(cost) = sequence.take_due_cost() {
            self.backlog.charge(sequence.tenant(), cost);
        }
        self.totals.accepted_tokens += u64::from(token.is_drafted);
        self.totals.drafted_tokens += u64::from(token.is_drafted) + u64::from(token.num_rejected);
        events.push(Event { id, kind: EventKind::Token(token, finish) });
        Some(finish.is_some())
    }

    fn end_if_due(&mut self, Grown { id, has_ended }: Grown) {
        let Some(sequence) = self.sequences.get(id) else { return };
        if has_ended {
            self.output_lengths.observe(sequence.num_generated());
            self.on_cancel(id);
        } else if self.suspects.has_passed(id, sequence.len()) {
            self.end_trial(id);
        }
    }
}
