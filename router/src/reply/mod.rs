//! A model's reply taken apart while it is written: reasoning, text, calls of tools. What is told does not depend on where
//! the text was cut into pieces.

mod constraint;
mod deepseek;
mod events;
mod format;
mod harmony;
mod hermes;
mod json_call;
mod json_calls;
mod marker;
mod mistral;
mod pythonic;
mod reasoning;

pub use constraint::{Constraint, Part};
use events::Events;
pub use events::ReplyEvent;
pub use format::{ReplyFormat, ReplyStyle, Thinking, ToolFormat};
use harmony::HarmonyReader;
use reasoning::ReasoningSplitter;

/// Finds calls in the text after the reasoning. One for each format in which models write them.
trait ToolParser: Send {
    /// Reads text until its own state changes; what is then left of the text, or nothing.
    fn step(&mut self, text: &str, out: &mut Events) -> Option<String>;

    /// More of the text.
    fn push(&mut self, text: &str, out: &mut Events) {
        let mut rest = Some(text.to_owned());
        while let Some(text) = rest.filter(|text| !text.is_empty()) {
            rest = self.step(&text, out);
        }
    }

    /// The text is over; what was held back for a call that did not come is text.
    fn finish(&mut self, out: &mut Events);
}

/// Reads one reply.
pub struct ReplyParser {
    reader: Reader,
    events: Events,
}

enum Reader {
    /// Reasoning first, then text with calls in it.
    Marked { reasoning: ReasoningSplitter, tools: Option<Box<dyn ToolParser>> },
    /// Messages on channels.
    Harmony(HarmonyReader),
}

impl ReplyParser {
    /// At the start of a reply in this format.
    pub fn new(format: &ReplyFormat) -> Self {
        let reader = match format.tools {
            Some(ToolFormat::Harmony) => Reader::Harmony(HarmonyReader::new()),
            tools => Reader::Marked {
                reasoning: ReasoningSplitter::new(format.thinking),
                tools: tools.and_then(|tools| tools.parser(&format.names)),
            },
        };
        Self { reader, events: Events::default() }
    }

    /// What one more piece of text tells.
    pub fn push(&mut self, text: &str) -> Vec<ReplyEvent> {
        match &mut self.reader {
            Reader::Harmony(reader) => reader.push(text, &mut self.events),
            Reader::Marked { reasoning, tools } => {
                if let Some(rest) = reasoning.push(text, &mut self.events) {
                    read(&rest, tools, &mut self.events);
                }
            }
        }
        self.events.take()
    }

    /// What is left when the reply is over.
    pub fn finish(&mut self) -> Vec<ReplyEvent> {
        match &mut self.reader {
            Reader::Harmony(reader) => reader.finish(&mut self.events),
            Reader::Marked { reasoning, tools } => {
                if let Some(rest) = reasoning.finish(&mut self.events) {
                    read(&rest, tools, &mut self.events);
                }
                if let Some(tools) = tools {
                    tools.finish(&mut self.events);
                }
            }
        }
        self.events.take()
    }
}

fn read(text: &str, tools: &mut Option<Box<dyn ToolParser>>, events: &mut Events) {
    match tools {
        Some(tools) => tools.push(text, events),
        None => events.text(text),
    }
}

#[cfg(test)]
mod tests;
