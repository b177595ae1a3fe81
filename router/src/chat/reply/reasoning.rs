//! Reasoning between `<think>` and `</think>`, before the rest of a reply.

use super::events::Events;
use super::format::Thinking;
use super::marker::Watch;

pub(super) const OPEN: &str = "<think>";
pub(super) const CLOSE: &str = "</think>";

/// Separates the reasoning at the start of a reply from the rest.
pub(super) struct ReasoningSplitter {
    state: State,
    close: Watch,
    /// Blanks that are part of the reasoning only if more of it follows.
    blank: String,
}

enum State {
    /// Only blanks and the start of `<think>` were read so far.
    Begin(String),
    Thinking {
        begun: bool,
    },
    /// Blanks after the reasoning are layout.
    Closed,
    Over,
}

impl ReasoningSplitter {
    pub fn new(thinking: Thinking) -> Self {
        let state = match thinking {
            Thinking::Never => State::Over,
            Thinking::Possible => State::Begin(String::new()),
            Thinking::Open => State::Thinking { begun: false },
        };
        Self { state, close: Watch::new(&[CLOSE]), blank: String::new() }
    }

    /// Reads a piece of text; returns the part that is not reasoning, if there is any.
    pub fn push(&mut self, text: String, out: &mut Events) -> Option<String> {
        match &mut self.state {
            State::Over => Some(text),
            State::Begin(held) => {
                held.push_str(&text);
                let held = held.clone();
                self.begin(&held, out)
            }
            State::Thinking { .. } => self.read_reasoning(&text, out),
            State::Closed => self.rest(&text),
        }
    }

    /// Returns the text that was held back and is not reasoning, if there is any.
    pub fn finish(&mut self, out: &mut Events) -> Option<String> {
        match &mut self.state {
            State::Begin(held) => Some(std::mem::take(held)),
            State::Thinking { begun } => {
                let begun = *begun;
                let held = self.close.finish();
                self.emit(&held, begun, out);
                None
            }
            State::Closed | State::Over => None,
        }
    }

    fn begin(&mut self, held: &str, out: &mut Events) -> Option<String> {
        let start = held.trim_start();
        if let Some(thought) = start.strip_prefix(OPEN) {
            self.state = State::Thinking { begun: false };
            return self.read_reasoning(thought, out);
        }
        if OPEN.starts_with(start) {
            return None;
        }
        self.state = State::Over;
        Some(held.to_owned())
    }

    fn read_reasoning(&mut self, text: &str, out: &mut Events) -> Option<String> {
        let State::Thinking { begun } = self.state else { return None };
        let seen = self.close.push(text);
        let begun = self.emit(&seen.before, begun, out);
        self.state = State::Thinking { begun };
        let (_, after) = seen.found?;
        self.state = State::Closed;
        self.rest(&after)
    }

    /// Emits reasoning without the blanks around it; returns whether any was emitted so far.
    fn emit(&mut self, text: &str, begun: bool, out: &mut Events) -> bool {
        let text = if begun { text } else { text.trim_start() };
        let trimmed = text.trim_end();
        if !trimmed.is_empty() {
            out.reasoning(std::mem::take(&mut self.blank));
            out.reasoning(trimmed);
        }
        let begun = begun || !trimmed.is_empty();
        if begun {
            self.blank.push_str(&text[trimmed.len()..]);
        }
        begun
    }

    fn rest(&mut self, text: &str) -> Option<String> {
        let text = text.trim_start();
        if text.is_empty() {
            return None;
        }
        self.state = State::Over;
        Some(text.to_owned())
    }
}
