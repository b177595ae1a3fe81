//! The sequences of the engine loop that are traced. Nothing is looked up while there is none.

use std::collections::HashMap;

use penstock_scheduler::{Event, RequestId};

use super::{AnsweredStep, SequenceTrace};

/// By their numbers.
#[derive(Default)]
pub struct SequenceTraces(HashMap<RequestId, Box<SequenceTrace>>);

impl SequenceTraces {
    /// It was accepted; it may be none that is traced.
    pub fn begin(&mut self, id: RequestId, trace: Option<Box<SequenceTrace>>) {
        if let Some(mut trace) = trace {
            trace.on_accepted(id);
            self.0.insert(id, trace);
        }
    }

    /// It is over.
    pub fn end(&mut self, id: RequestId) {
        if !self.0.is_empty() {
            self.0.remove(&id);
        }
    }

    /// What the scheduler says of one.
    pub fn on_event(&mut self, event: &Event) {
        if !self.0.is_empty()
            && let Some(trace) = self.0.get_mut(&event.id)
        {
            trace.on_event(&event.kind);
        }
    }

    /// A step was answered in which these have so many positions.
    pub fn on_step(&mut self, step: &AnsweredStep, parts: impl Iterator<Item = (RequestId, u32)>) {
        if self.0.is_empty() {
            return;
        }
        for (id, positions) in parts {
            if let Some(trace) = self.0.get_mut(&id) {
                trace.on_step(step, positions);
            }
        }
    }
}
