//! What a parser of tool calls does.

use super::events::Events;

/// Finds calls in the text after the reasoning. One for each format in which models write them.
pub(super) trait ToolParser: Send {
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
