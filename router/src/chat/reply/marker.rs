//! Finds markers in text that arrives in pieces, and drops the blanks around calls.

use super::events::Events;

/// Watches for markers, none of which is the start of another. Text that could become a marker is held back.
#[derive(Debug)]
pub(super) struct Watch {
    markers: &'static [&'static str],
    held: String,
}

/// The result of one piece of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Text before the marker, or text that can be no part of a marker.
    pub before: String,
    /// The marker, and the text after it.
    pub found: Option<(&'static str, String)>,
}

impl Watch {
    pub fn new(markers: &'static [&'static str]) -> Self {
        Self { markers, held: String::new() }
    }

    /// Adds a piece of text; after a marker, the next piece starts anew.
    pub fn push(&mut self, text: &str) -> Seen {
        self.held.push_str(text);
        let found = self.markers.iter().filter_map(|marker| Some((self.held.find(marker)?, *marker))).min();
        if let Some((at, marker)) = found {
            let all = std::mem::take(&mut self.held);
            let after = all[at + marker.len()..].to_owned();
            return Seen { before: all[..at].to_owned(), found: Some((marker, after)) };
        }
        let undecided = self.markers.iter().map(|marker| overlap(&self.held, marker)).max().unwrap_or(0);
        let before = self.held.drain(..self.held.len() - undecided).collect();
        Seen { before, found: None }
    }

    /// Returns the text that was held back, at the end of the text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest proper prefix of `marker` that `text` ends with.
fn overlap(text: &str, marker: &str) -> usize {
    let starts = marker.char_indices().map(|(at, _)| at).skip(1);
    starts.filter(|&len| text.ends_with(&marker[..len])).max().unwrap_or(0)
}

/// Text around calls: blanks before a call and after the last one are layout, not text.
#[derive(Debug, Default)]
pub(super) struct Prose {
    blank: String,
    after_call: bool,
}

impl Prose {
    pub fn push(&mut self, text: &str, out: &mut Events) {
        let text = if self.after_call && self.blank.is_empty() { text.trim_start() } else { text };
        let trimmed = text.trim_end();
        if !trimmed.is_empty() {
            out.text(std::mem::take(&mut self.blank));
            out.text(trimmed);
            self.after_call = false;
        }
        self.blank.push_str(&text[trimmed.len()..]);
    }

    pub fn before_call(&mut self) {
        self.blank.clear();
        self.after_call = true;
    }

    /// Blanks after a call are dropped, those after text are part of it.
    pub fn finish(&mut self, out: &mut Events) {
        out.text(std::mem::take(&mut self.blank));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_found_however_it_is_cut() {
        let mut watch = Watch::new(&["<a>", "</a>"]);
        assert_eq!(watch.push("x<"), Seen { before: "x".into(), found: None });
        assert_eq!(watch.push("b<"), Seen { before: "<b".into(), found: None });
        assert_eq!(watch.push("/a"), Seen { before: String::new(), found: None });
        assert_eq!(watch.push(">y<"), Seen { before: String::new(), found: Some(("</a>", "y<".into())) });
        assert_eq!(watch.push("é<"), Seen { before: "é".into(), found: None });
        assert_eq!(watch.finish(), "<");
    }
}
