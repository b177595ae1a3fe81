//! The trace of one sequence, as spans that follow each other: `queue` until it first gets a slot, `prefill` until its
//! first token, `decode` until its last. A preemption or a replay is an event of the span that is open.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use opentelemetry::trace::{Span as _, SpanBuilder, SpanContext, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::Span;
use penstock_scheduler::{EventKind, RequestId};

use super::steps::{self, AnsweredStep, StepTotals};
use super::tracing::Tracing;
use super::{RequestTrace, attributes};

/// Most steps of a prefill that get spans of their own: the chunks of a prompt of common length. The sums have all
/// steps.
const MAX_PREFILL_STEPS: u32 = 8;
/// Most steps of a decode that get spans of their own: an output has thousands of steps that are like each other.
const MAX_DECODE_STEPS: u32 = 2;

/// The trace of one sequence. When it is dropped, the open span ends.
pub struct SequenceTrace {
    tracing: Arc<Tracing>,
    /// The span of the request.
    parent: SpanContext,
    id: i64,
    clock: Clock,
    phase: Phase,
    span: Span,
    steps: StepTotals,
    output_tokens: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Queue,
    Prefill,
    Decode,
}

/// The wall clock at a start, plus the monotonic time since: if somebody set the wall clock back, spans would otherwise
/// end before they begin.
struct Clock {
    wall: SystemTime,
    started: Instant,
}

impl Clock {
    fn now(&self) -> SystemTime {
        self.wall + self.started.elapsed()
    }
}

impl SequenceTrace {
    /// Begins the span `queue`; the sequence is not queued yet.
    pub fn begin(request: &RequestTrace) -> Self {
        Self {
            tracing: Arc::clone(request.tracing()),
            parent: request.span_context(),
            id: 0,
            clock: Clock { wall: SystemTime::now(), started: Instant::now() },
            phase: Phase::Queue,
            span: request.begin_child(SpanBuilder::from_name("queue")),
            steps: StepTotals::default(),
            output_tokens: 0,
        }
    }

    /// The scheduler has accepted the sequence under this id.
    pub fn on_accepted(&mut self, id: RequestId) {
        self.id = id.0 as i64;
        self.span.set_attribute(KeyValue::new(attributes::SEQUENCE, self.id));
    }

    /// Records an event of the scheduler.
    pub fn on_event(&mut self, event: &EventKind) {
        match event {
            EventKind::Admitted { cached_tokens, .. } => self.on_admitted(*cached_tokens),
            EventKind::Token(..) => self.on_token(),
            EventKind::PromptLogprobs(_) => {}
            EventKind::Preempted => self.note("preempted"),
            EventKind::Replayed => self.note("replayed"),
            EventKind::PassedOn => self.note("passed_on"),
            EventKind::Failed(_) => self.span.set_status(Status::error("")),
        }
    }

    /// A step has completed that computed `own_positions` positions of this sequence.
    pub fn on_step(&mut self, step: &AnsweredStep, own_positions: u32) {
        let max_steps = if self.phase == Phase::Decode { MAX_DECODE_STEPS } else { MAX_PREFILL_STEPS };
        if self.steps.count < max_steps {
            let parent = Context::new().with_remote_span_context(self.span.span_context().clone());
            steps::emit(&self.tracing.shard, &parent, step, own_positions, self.clock.now());
        }
        self.steps.add(step.timings);
    }

    fn on_admitted(&mut self, cached_tokens: u32) {
        self.enter(Phase::Prefill, "prefill");
        self.span.set_attribute(KeyValue::new(attributes::CACHED_TOKENS, i64::from(cached_tokens)));
    }

    fn on_token(&mut self) {
        self.output_tokens += 1;
        if self.phase != Phase::Decode {
            self.enter(Phase::Decode, "decode");
            let seconds = self.clock.started.elapsed().as_secs_f64();
            self.span.set_attribute(KeyValue::new(attributes::TIME_TO_FIRST_TOKEN, seconds));
        }
    }

    fn note(&mut self, what: &'static str) {
        self.span.add_event_with_timestamp(what, self.clock.now(), Vec::new());
    }

    /// Ends the span that is open, and begins the next.
    fn enter(&mut self, phase: Phase, name: &'static str) {
        let now = self.clock.now();
        self.end(now);
        let parent = Context::new().with_remote_span_context(self.parent.clone());
        let of_sequence = [KeyValue::new(attributes::SEQUENCE, self.id)];
        let builder = SpanBuilder::from_name(name).with_start_time(now).with_attributes(of_sequence);
        self.span = self.tracing.router.build_with_context(builder, &parent);
        (self.phase, self.steps) = (phase, StepTotals::default());
    }

    fn end(&mut self, now: SystemTime) {
        if self.phase != Phase::Queue {
            self.span.set_attributes(self.steps.attributes());
        }
        if self.phase == Phase::Decode {
            let tokens = i64::from(self.output_tokens);
            self.span.set_attribute(KeyValue::new(attributes::OUTPUT_TOKENS, tokens));
        }
        self.span.end_with_timestamp(now);
    }
}

impl Drop for SequenceTrace {
    fn drop(&mut self) {
        self.end(self.clock.now());
    }
}
