//! Takes in what the shards answer: tokens, errors and what became certain by it.

use crate::step::MAX_PREEMPTIONS;
use crate::{
    Event, EventKind, Failure, InFlight, Mismatch, Outcome, PromptScores, RequestId, Sampled, Scheduler,
    SlotId, remove_if_owned,
};

/// Output tokens after which a tenant's account is brought up to date.
const CHARGE_EVERY: u64 = 32;
/// What an output token costs a tenant, in prompt tokens: it takes a step of its own.
const OUTPUT_COST: u64 = 2;
/// Weight of the newest output length in the running mean.
const OUTPUT_LEN_GAIN: f64 = 0.05;

impl Scheduler {
    /// Takes in the answer to the oldest plan in flight.
    pub fn on_outcome(&mut self, outcome: Outcome) -> Result<Vec<Event>, Mismatch> {
        let planned = self.answered(&outcome)?;
        let micros = outcome.timings.total_us();
        if micros > 0 && !planned.spans.is_empty() {
            self.step_times.observe(planned.cost, f64::from(micros));
        }
        let mut events = Vec::with_capacity(planned.spans.len());
        self.take_prompt_scores(&planned, outcome.prompt_scores);
        self.take_errors(&planned, outcome.errors, &mut events);
        self.confirm(&planned);
        self.blocks.on_answered(planned.step);
        self.take_tokens(&planned, outcome.sampled, &mut events);
        Ok(events)
    }

    /// The plan that `outcome` answers.
    fn answered(&mut self, outcome: &Outcome) -> Result<InFlight, Mismatch> {
        let expected = self.in_flight.front().map(|plan| plan.step);
        let mismatch = |reason| Mismatch { got: outcome.step, expected, reason };
        if expected != Some(outcome.step) {
            return Err(mismatch("it is out of order"));
        }
        let planned = self.in_flight.pop_front().ok_or(mismatch("nothing is in flight"))?;
        let failed = |slot: SlotId| outcome.errors.iter().any(|(other, _)| *other == slot);
        let expected_slots =
            planned.spans.iter().filter(|span| span.samples && !failed(span.slot)).map(|span| span.slot);
        if !expected_slots.eq(outcome.sampled.iter().map(|sampled| sampled.slot)) {
            return Err(mismatch("it does not sample the slots that were planned"));
        }
        Ok(planned)
    }

    fn take_prompt_scores(&mut self, planned: &InFlight, scores: Vec<PromptScores>) {
        for part in scores {
            let Some(span) = planned.spans.iter().find(|span| span.slot == part.slot) else { continue };
            if let Some(sequence) = self.sequences.get_mut(&span.id) {
                sequence.keep_prompt_scores(part.start, part.scores);
            }
        }
    }

    fn take_errors(&mut self, planned: &InFlight, errors: Vec<(SlotId, String)>, events: &mut Vec<Event>) {
        for (slot, message) in errors {
            let Some(span) = planned.spans.iter().find(|span| span.slot == slot) else { continue };
            let Some(sequence) = self.sequences.get(&span.id) else { continue };
            // What it computed may be what made it fail: nobody else shall build on it.
            if let Some(row) = &sequence.row {
                self.blocks.distrust(&row.blocks);
            }
            events.push(Event { id: span.id, kind: EventKind::Failed(Failure::Request(message)) });
            self.on_cancel(span.id);
        }
    }

    /// The spans are computed: blocks that they completed are published.
    fn confirm(&mut self, planned: &InFlight) {
        let block_size = self.config.block_size as usize;
        for span in &planned.spans {
            let Some(sequence) = self.sequences.get_mut(&span.id) else { continue };
            sequence.num_in_flight -= 1;
            let Some(row) = sequence.row.as_mut() else { continue };
            row.confirmed = span.end;
            let num_full = span.end as usize / block_size;
            for at in row.num_published..num_full {
                let key = sequence.keys[at];
                let parent = if at == 0 { sequence.root } else { sequence.keys[at - 1] };
                if self.config.prefix_caching {
                    let tokens = &sequence.tokens[at * block_size..(at + 1) * block_size];
                    self.blocks.publish(row.blocks[at], key, parent, tokens);
                }
                remove_if_owned(&mut self.pending, &key, span.id);
            }
            row.num_published = row.num_published.max(num_full);
            self.give_back_behind(span.id);
        }
    }

    /// Blocks behind the window of all that is still to be computed are no longer the sequence's, but may be cached.
    fn give_back_behind(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let (retain_until, longest) = (sequence.retain_until(self.now), sequence.max_len());
        let is_guaranteed = sequence.num_preemptions >= MAX_PREEMPTIONS;
        let Some(row) = sequence.row.as_mut() else { return };
        let num_behind = self.window.num_behind(row.confirmed);
        let Some(behind) = row.blocks.get(row.num_behind..num_behind).filter(|it| !it.is_empty()) else {
            return;
        };
        self.blocks.release(behind.to_vec(), row.last_step, retain_until);
        if is_guaranteed {
            let still = longest.div_ceil(self.config.block_size) as usize - row.blocks.len();
            let more = behind.len().min(still - row.reserved);
            row.reserved += more;
            self.reserved += more;
        }
        row.num_behind = num_behind;
    }

    fn take_tokens(&mut self, planned: &InFlight, sampled: Vec<Sampled>, events: &mut Vec<Event>) {
        let mut sampled = sampled.into_iter().peekable();
        for span in planned.spans.iter().filter(|span| span.samples) {
            // A slot that failed has no token.
            let Some(token) = sampled.next_if(|token| token.slot == span.slot) else { continue };
            self.take_token(span.id, token, events);
        }
    }

    fn take_token(&mut self, id: RequestId, token: Sampled, events: &mut Vec<Event>) {
        // A request that ended while this was in flight: the token is beyond its end.
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        if sequence.num_generated() == 0 && sequence.request.sampling.prompt_logprobs {
            let scores = sequence.take_prompt_scores();
            events.push(Event { id, kind: EventKind::PromptLogprobs(scores) });
        }
        let finish = sequence.push(token.id, &self.config.eos_token_ids);
        sequence.extend_keys(&self.keys, self.config.block_size);
        sequence.uncharged += OUTPUT_COST;
        if sequence.uncharged >= CHARGE_EVERY {
            self.queue.charge(&sequence.ticket.tenant, std::mem::take(&mut sequence.uncharged));
        }
        if finish.is_some() {
            let len = f64::from(sequence.num_generated());
            self.output_len += OUTPUT_LEN_GAIN * (len - self.output_len);
        }
        events.push(Event { id, kind: EventKind::Token(token, finish) });
        match finish {
            Some(_) => self.on_cancel(id),
            None => self.acquit_if_passed(id),
        }
    }
}
