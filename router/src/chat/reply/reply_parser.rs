//! The parser of replies in all formats.

use super::deepseek::DeepSeekParser;
use super::events::{Events, ReplyEvent};
use super::format::{Names, ReplyFormat, ToolFormat};
use super::harmony::HarmonyReader;
use super::hermes::HermesParser;
use super::json_calls::JsonCallsParser;
use super::mistral::MistralParser;
use super::pythonic::PythonicParser;
use super::reasoning::ReasoningSplitter;
use super::tool_parser::ToolParser;

/// Parses one reply.
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
    /// Starts a reply in this format.
    pub fn new(format: &ReplyFormat) -> Self {
        let reader = match format.tools {
            Some(ToolFormat::Harmony) => Reader::Harmony(HarmonyReader::new()),
            tools => Reader::Marked {
                reasoning: ReasoningSplitter::new(format.thinking),
                tools: tools.and_then(|tools| tool_parser(tools, &format.names)),
            },
        };
        Self { reader, events: Events::default() }
    }

    /// The events of one more piece of text.
    pub fn push(&mut self, text: impl Into<String>) -> Vec<ReplyEvent> {
        match &mut self.reader {
            Reader::Harmony(reader) => reader.push(text.into(), &mut self.events),
            Reader::Marked { reasoning, tools } => {
                if let Some(rest) = reasoning.push(text.into(), &mut self.events) {
                    read(rest, tools, &mut self.events);
                }
            }
        }
        self.events.take()
    }

    /// The events that are left at the end of the reply.
    pub fn finish(&mut self) -> Vec<ReplyEvent> {
        match &mut self.reader {
            Reader::Harmony(reader) => reader.finish(&mut self.events),
            Reader::Marked { reasoning, tools } => {
                if let Some(rest) = reasoning.finish(&mut self.events) {
                    read(rest, tools, &mut self.events);
                }
                if let Some(tools) = tools {
                    tools.finish(&mut self.events);
                }
            }
        }
        self.events.take()
    }
}

fn read(text: String, tools: &mut Option<Box<dyn ToolParser>>, events: &mut Events) {
    match tools {
        Some(tools) => tools.push(text, events),
        None => events.text(text),
    }
}

/// The parser of calls in text; `None` for Harmony, whose calls are messages of their own.
fn tool_parser(format: ToolFormat, names: &Names) -> Option<Box<dyn ToolParser>> {
    Some(match format {
        ToolFormat::Hermes => Box::new(HermesParser::new()),
        ToolFormat::Mistral | ToolFormat::MistralNamed => Box::new(MistralParser::new(names.clone())),
        ToolFormat::DeepSeek | ToolFormat::DeepSeekFenced => Box::new(DeepSeekParser::new()),
        ToolFormat::Pythonic => Box::new(PythonicParser::new(names.clone())),
        ToolFormat::Json => Box::new(JsonCallsParser::new(names.clone())),
        ToolFormat::Harmony => return None,
    })
}
