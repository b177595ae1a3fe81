//! How long a step may take: what prompts may take from the streams that run, and when the next plan can wait.

use std::time::Duration;

use super::Scheduler;
use super::step::StepBuilder;

/// Where no target is set, prefill may stretch a step with decodes by this factor.
const MAX_STRETCH: f64 = 1.9;
/// Where more prompts wait than streams run, the streams may pause so long for each of the prompts, shared among them.
const PAUSE: Duration = Duration::from_millis(200);
/// Tokens of a stream between two pauses: few enough of its gaps are long that its 99th percentile is not.
const PAUSE_EVERY: u32 = 200;
/// Prompts that are computed side by side, unless one step takes more. More would only make each of them later.
const MAX_PREFILLING: usize = 8;
/// A step with prompts that takes so long: beside it, the round trip that a plan made in advance hides is nothing.
const LONG_STEP: Duration = Duration::from_millis(100);

impl Scheduler {
    /// Whether to make no plan before the one in flight is answered: what comes while a long step runs is then in the
    /// very next one, all of it.
    pub(super) fn awaits_answer(&self) -> bool {
        self.in_flight.front().is_some_and(|step| {
            step.cost.tokens > step.spans.len() as f64
                && self.step_times.predict(step.cost).is_some_and(|time| time >= micros(LONG_STEP))
        })
    }

    /// Whether one more prompt may be under way beside `num_prompts` with `num_tokens` to compute.
    pub(super) fn takes_another(&self, num_prompts: usize, num_tokens: u32, step: &StepBuilder) -> bool {
        num_prompts < MAX_PREFILLING || (num_tokens < step.budget && self.may_pause(num_prompts, step))
    }

    /// How long a step may take which has its decodes, and into which `num_prompts` want.
    pub(super) fn allowed_micros(&self, num_prompts: usize, step: &StepBuilder) -> f64 {
        if step.planned.is_empty() {
            return f64::INFINITY;
        }
        let usual = self.usual_micros(step);
        match self.may_pause(num_prompts, step) {
            true => usual.max(micros(PAUSE) * num_prompts as f64 / step.planned.len() as f64),
            false => usual,
        }
    }

    /// Once a step has all its chunks: if they take more than the usual time, that was a pause of its decodes.
    pub(super) fn note_pause(&mut self, num_decodes: usize, usual: f64, step: &StepBuilder) {
        if self.step_times.predict(step.cost).is_none_or(|time| time <= usual) {
            return;
        }
        for decode in &step.planned[..num_decodes] {
            if let Some(stream) = self.sequences.get_mut(&decode.id) {
                stream.rested_at = stream.num_generated() + PAUSE_EVERY;
            }
        }
    }

    pub(super) fn usual_micros(&self, decodes: &StepBuilder) -> f64 {
        match self.config.target_itl {
            Some(target) => micros(target),
            // Finite, so that what the model never saw is approached by doubling.
            None => self.step_times.predict(decodes.cost).map_or(f64::MAX, |time| time * MAX_STRETCH),
        }
    }

    /// Whether the streams with decodes in this step give way to so many prompts.
    fn may_pause(&self, num_prompts: usize, step: &StepBuilder) -> bool {
        let rested =
            |id| self.sequences.get(id).is_none_or(|stream| stream.num_generated() >= stream.rested_at);
        num_prompts > step.planned.len()
            && self.config.target_itl.is_none()
            && step.planned.iter().all(|decode| rested(&decode.id))
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
