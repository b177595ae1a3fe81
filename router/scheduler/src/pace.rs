//! How long a step may take: what prompts may take from the streams that run, and when the next plan can wait.

use std::time::Duration;

use crate::Scheduler;
use crate::sequence::Sequence;
use crate::step::StepBuilder;
use crate::step_time::StepCost;

/// Where no target is set, prefill may stretch a step with decodes by this factor.
const MAX_STRETCH: f64 = 1.9;
/// Where more prompts wait than streams run, the streams may pause so long for each of them, shared among the streams.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest pause, and longest step into which more prompts are taken than are computed side by side.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Tokens of a stream from one pause to the next: of a long answer, few enough gaps are long.
const PAUSE_EVERY: u32 = 200;
/// Prompts that are computed side by side, unless one step takes more. More would only make each of them later.
const MAX_PREFILLING: usize = 8;
/// A step with prompts that takes so long: beside it, the round trip that a plan made in advance hides is nothing.
const LONG_STEP: Duration = Duration::from_millis(100);
/// Times the tokens of any step seen that a step may have: what is larger teaches before it is trusted.
const FURTHER: f64 = 2.0;
/// The same for a pause, which is rare: a cold model is to learn from its first bursts.
const FURTHER_AT_ONCE: f64 = 4.0;

/// The prompts under way.
#[derive(Default)]
pub(super) struct Prompts {
    pub(super) count: usize,
    /// Positions to compute.
    tokens: u32,
    lowest_priority: Option<i32>,
}

impl Prompts {
    pub(super) fn add(&mut self, sequence: &Sequence) {
        let priority = sequence.ticket.priority;
        self.count += 1;
        self.tokens = self.tokens.saturating_add(sequence.num_plannable());
        self.lowest_priority = Some(self.lowest_priority.map_or(priority, |lowest| lowest.min(priority)));
    }
}

/// What the prompts of a step may take.
#[derive(Clone, Copy)]
pub(super) struct Allowance {
    /// Microseconds of the whole step; infinite without decodes.
    pub(super) micros: f64,
    /// Times the tokens of any step seen.
    pub(super) further: f64,
    /// From here on it is a pause.
    usual: f64,
    num_decodes: usize,
}

impl Scheduler {
    /// Whether to make no plan before the one in flight is answered: what comes while a long step runs is then in the
    /// very next one, all of it.
    pub(super) fn awaits_answer(&self) -> bool {
        self.in_flight.front().is_some_and(|step| {
            step.cost.tokens > step.spans.len() as f64
                && self.step_times.predict(step.cost).is_some_and(|time| time >= micros(LONG_STEP))
        })
    }

    /// Whether one more prompt may be under way beside these, in a step that has its decodes.
    pub(super) fn takes_another(&self, prompts: &Prompts, step: &StepBuilder) -> bool {
        if prompts.count < MAX_PREFILLING {
            return true;
        }
        let all = step.cost.plus(StepCost::of_span(0, prompts.tokens));
        let longest = self.allowance(prompts, step).micros.min(micros(MAX_PAUSE));
        prompts.tokens < step.budget && self.step_times.predict(all).is_some_and(|time| time < longest)
    }

    /// What these prompts may take of a step that has its decodes.
    pub(super) fn allowance(&self, prompts: &Prompts, step: &StepBuilder) -> Allowance {
        let num_decodes = step.planned.len();
        let usual = match self.config.target_itl {
            _ if num_decodes == 0 => f64::INFINITY,
            Some(target) => micros(target),
            // Finite, so that what the model never saw is approached by growing.
            None => self.step_times.predict(step.cost).map_or(f64::MAX, |time| time * MAX_STRETCH),
        };
        if num_decodes == 0 || !self.may_pause(prompts, step) {
            return Allowance { micros: usual, further: FURTHER, usual, num_decodes };
        }
        let pause = micros(PAUSE) * prompts.count as f64 / num_decodes as f64;
        let longest = usual.max(pause.min(micros(MAX_PAUSE)));
        Allowance { micros: longest, further: FURTHER_AT_ONCE, usual, num_decodes }
    }

    /// Once a step has all its chunks: if they take more than the usual time, that was a pause of its decodes.
    pub(super) fn note_pause(&mut self, allowance: Allowance, step: &StepBuilder) {
        if self.step_times.predict(step.cost).is_none_or(|time| time <= allowance.usual) {
            return;
        }
        for decode in &step.planned[..allowance.num_decodes] {
            if let Some(stream) = self.sequences.get_mut(&decode.id) {
                stream.rested_at = stream.num_generated() + PAUSE_EVERY;
            }
        }
    }

    /// Whether the streams with decodes in this step give way: they are fewer than the prompts, of no higher priority,
    /// and none paused lately.
    fn may_pause(&self, prompts: &Prompts, step: &StepBuilder) -> bool {
        let Some(lowest) = prompts.lowest_priority else { return false };
        let gives_way = |stream: &Sequence| {
            stream.num_generated() >= stream.rested_at && stream.ticket.priority <= lowest
        };
        prompts.count > step.planned.len()
            && self.config.target_itl.is_none()
            && step.planned.iter().all(|decode| self.sequences.get(&decode.id).is_none_or(gives_way))
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
