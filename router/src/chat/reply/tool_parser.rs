//! The interface of parsers of tool calls.

use super::events::Events;

/// Finds calls in the text after the reasoning. One implementation for each format in which models write them.
pub(super) trait ToolParser: Send {
    /// Reads text until the parser's state changes; returns the text that is then left, if any.
    fn step(&mut self, text: &str, out: &mut Events) -> Option<String>;

    /// Reads one more piece of text.
    fn push(&mut self, text: String, out: &mut Events) {
        let mut rest = Some(text);
        while let Some(text) = rest.filter(|text| !text.is_empty()) {
            rest = self.step(&text, out);
        }
    }

    /// Ends the text. What was held back for a call that is not complete is text.
    fn finish(&mut self, out: &mut Events);
}
