//! Decides what every step computes: a pure, deterministic state machine without clock, I/O or threads.

mod plan;
mod request;

pub use plan::{Admission, BlockId, Outcome, Plan, PromptScores, Sampled, SlotId, Span, StepTimings};
pub use request::{
    Failure, FinishReason, Grammar, GrammarKind, NewRequest, Refused, RequestId, SamplingParams, TopToken,
};
