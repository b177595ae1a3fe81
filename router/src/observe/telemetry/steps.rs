//! The shards' work in a step, as spans of rank 0's process: made here, from the durations in an outcome. Durations
//! have no start, so a step is assumed to end when its outcome arrives, and its parts to follow each other. Where two
//! steps overlap on a device, the spans are late by up to the time of one step.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Span as _, SpanBuilder, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;
use penstock_scheduler::{StepSize, StepTimings};

use super::attributes;

/// A step whose outcome has arrived.
#[derive(Debug, Clone, Copy)]
pub struct AnsweredStep {
    /// The number of the step.
    pub step: u64,
    /// Sequences and positions that it computed, of all requests.
    pub size: StepSize,
    /// Time that the shards spent on each part of it.
    pub timings: StepTimings,
}

/// The parts of a step, in order.
fn parts(timings: StepTimings) -> [(&'static str, Duration); 4] {
    let micros = |us: u32| Duration::from_micros(us.into());
    [
        ("upload", micros(timings.upload_us)),
        ("forward", micros(timings.forward_us)),
        ("sample", micros(timings.sample_us)),
        ("download", micros(timings.download_us)),
    ]
}

/// Emits a step that ended at `end`, with its parts.
pub(super) fn emit(shard: &SdkTracer, parent: &Context, step: &AnsweredStep, own: u32, end: SystemTime) {
    let parts = parts(step.timings);
    let total: Duration = parts.iter().map(|(_, took)| *took).sum();
    let mut at = end.checked_sub(total).unwrap_or(end);
    let builder = SpanBuilder::from_name("step").with_start_time(at).with_attributes([
        KeyValue::new(attributes::STEP, step.step as i64),
        KeyValue::new(attributes::STEP_SEQUENCES, step.size.sequences as i64),
        KeyValue::new(attributes::STEP_POSITIONS, step.size.positions as i64),
        KeyValue::new(attributes::OWN_POSITIONS, i64::from(own)),
    ]);
    let mut span = shard.build_with_context(builder, parent);
    let step_context = Context::new().with_remote_span_context(span.span_context().clone());
    for (name, took) in parts {
        let builder = SpanBuilder::from_name(name).with_start_time(at);
        at += took;
        shard.build_with_context(builder, &step_context).end_with_timestamp(at);
    }
    span.end_with_timestamp(end);
}

/// Sums over steps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepTotals {
    /// Number of steps.
    pub count: u32,
    spent: [Duration; 4],
}

impl StepTotals {
    /// Adds one step.
    pub fn add(&mut self, timings: StepTimings) {
        self.count += 1;
        for (sum, (_, took)) in self.spent.iter_mut().zip(parts(timings)) {
            *sum += took;
        }
    }

    /// The attributes of the span that these steps belong to.
    pub fn attributes(&self) -> [KeyValue; 5] {
        let [upload, forward, sample, download] = self.spent.map(|sum| sum.as_secs_f64() * 1e3);
        [
            KeyValue::new(attributes::STEPS, i64::from(self.count)),
            KeyValue::new(attributes::UPLOAD_MS, upload),
            KeyValue::new(attributes::FORWARD_MS, forward),
            KeyValue::new(attributes::SAMPLE_MS, sample),
            KeyValue::new(attributes::DOWNLOAD_MS, download),
        ]
    }
}
