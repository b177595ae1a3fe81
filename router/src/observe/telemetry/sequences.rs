//! The traced sequences of the engine loop. While there are none, no sequence is looked up.

use std::collections::HashMap;

use penstock_scheduler::{Event, RequestId};

use super::{AnsweredStep, SequenceTrace};

/// The traces of sequences, by id.
#[derive(Default)]
pub struct SequenceTraces(HashMap<RequestId, Box<SequenceTrace>>);

impl SequenceTraces {
    /// The scheduler has accepted a sequence; `trace` is `None` if it is not traced.
    pub fn begin(&mut self, id: RequestId, trace: Option<Box<SequenceTrace>>) {
        if let Some(mut trace) = trace {
            trace.on_accepted(id);
            self.0.insert(id, trace);
        }
    }

    /// Ends the trace of a sequence, if it is traced.
    pub fn end(&mut self, id: RequestId) {
        if !self.0.is_empty() {
            self.0.remove(&id);
        }
    }

    /// Records an event of the scheduler.
    pub fn on_event(&mut self, event: &Event) {
        if !self.0.is_empty()
            && let Some(trace) = self.0.get_mut(&event.id)
        {
            trace.on_event(&event.kind);
        }
    }

    /// A step has completed; `parts` has its sequences, and how many positions of each it computed.
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
