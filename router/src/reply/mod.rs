//! A model's reply taken apart while it is written: reasoning, text, calls of tools. What is told does not depend on where
//! the text was cut into pieces.

mod constraint;
mod deepseek;
mod events;
mod format;
mod hermes;
mod json_call;
mod json_calls;
mod marker;
mod mistral;
mod pythonic;
mod reasoning;

pub use constraint::Constraint;
use events::Events;
pub use events::ReplyEvent;
pub use format::{ReplyFormat, ReplyStyle, Thinking, ToolFormat};
use reasoning::ReasoningSplitter;

/// Finds calls in the text after the reasoning. One for each format in which models write them.
trait ToolParser: Send {
    /// More of the text.
    fn push(&mut self, text: &str, out: &mut Events);

    /// The text is over; what was held back for a call that did not come is text.
    fn finish(&mut self, out: &mut Events);
}

/// Reads one reply.
pub struct ReplyParser {
    reasoning: ReasoningSplitter,
    tools: Option<Box<dyn ToolParser>>,
    events: Events,
}

impl ReplyParser {
    /// At the start of a reply in this format.
    pub fn new(format: &ReplyFormat) -> Self {
        let tools = format.tools.map(|tools| tools.parser(&format.names));
        Self { reasoning: ReasoningSplitter::new(format.thinking), tools, events: Events::default() }
    }

    /// What one more piece of text tells.
    pub fn push(&mut self, text: &str) -> Vec<ReplyEvent> {
        if let Some(rest) = self.reasoning.push(text, &mut self.events) {
            self.read(&rest);
        }
        self.events.take()
    }

    /// What is left when the reply is over.
    pub fn finish(&mut self) -> Vec<ReplyEvent> {
        if let Some(rest) = self.reasoning.finish(&mut self.events) {
            self.read(&rest);
        }
        if let Some(tools) = &mut self.tools {
            tools.finish(&mut self.events);
        }
        self.events.take()
    }

    fn read(&mut self, text: &str) {
        match &mut self.tools {
            Some(tools) => tools.push(text, &mut self.events),
            None => self.events.text(text),
        }
    }
}

#[cfg(test)]
mod tests;
