//! Finds stop strings in text that arrives in pieces. Text that could still become a stop string is held back, so that
//! no part of one is ever returned, and the result does not depend on where the pieces were cut.

/// Watches a text for stop strings. The first to be complete wins; of two complete at once, the longer.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Received but not returned: the longest end of the text that starts a stop string.
    held: String,
}

/// The result of one piece of text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that may be sent to the client.
    pub text: String,
    /// The stop string that was completed. No further piece may be added after this.
    pub matched: Option<String>,
}

impl StopMatcher {
    /// Watches for these stop strings; empty ones are ignored.
    pub fn new(stops: &[String]) -> Self {
        let patterns = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| Pattern::new(stop)).collect();
        Self { patterns, held: String::new() }
    }

    /// Adds a piece of text in which no stop string ends, also if one is spelt there. One may still begin in it.
    pub fn pass(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        for byte in piece.bytes() {
            self.advance(byte);
        }
        self.take_decided()
    }

    /// Adds a piece of text.
    pub fn push(&mut self, piece: &str) -> StopOutput {
        if self.patterns.is_empty() {
            return StopOutput { text: piece.to_owned(), matched: None };
        }
        let already_seen = self.held.len();
        self.held.push_str(piece);
        for end in already_seen..self.held.len() {
            if let Some(stop) = self.advance(self.held.as_bytes()[end]) {
                return self.cut_at(end + 1, stop);
            }
        }
        StopOutput { text: self.take_decided(), matched: None }
    }

    /// The text that cannot become part of a stop string any more.
    fn take_decided(&mut self) -> String {
        let undecided = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        self.held.drain(..self.held.len() - undecided).collect()
    }

    /// Returns the text that was held back, at the end of a text in which no stop string was completed.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn advance(&mut self, byte: u8) -> Option<String> {
        let complete = self.patterns.iter_mut().filter_map(|pattern| pattern.advance(byte));
        complete.max_by_key(|stop| stop.len()).map(str::to_owned)
    }

    fn cut_at(&mut self, end: usize, stop: String) -> StopOutput {
        let mut text = std::mem::take(&mut self.held);
        text.truncate(end - stop.len());
        StopOutput { text, matched: Some(stop) }
    }
}

/// One stop string as a Knuth-Morris-Pratt automaton over bytes: constant time per byte, whatever the string.
#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    /// `borders[i]`: length of the longest proper prefix of `text[..=i]` that also ends it.
    borders: Vec<usize>,
    /// How much of `text` the bytes so far end with, but for all of it.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut borders = vec![0; bytes.len()];
        for i in 1..bytes.len() {
            borders[i] = next_state(bytes, &borders, borders[i - 1], bytes[i]);
        }
        Self { text: text.to_owned(), borders, matched: 0 }
    }

    fn advance(&mut self, byte: u8) -> Option<&str> {
        self.matched = next_state(self.text.as_bytes(), &self.borders, self.matched, byte);
        let is_complete = self.matched == self.text.len();
        if is_complete {
            self.matched = self.borders[self.matched - 1];
        }
        is_complete.then_some(self.text.as_str())
    }
}

/// The state after `byte`, from the state `matched` (less than the pattern's length).
fn next_state(pattern: &[u8], borders: &[usize], mut matched: usize, byte: u8) -> usize {
    while matched > 0 && pattern[matched] != byte {
        matched = borders[matched - 1];
    }
    if pattern[matched] == byte { matched + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut shown = String::new();
        for piece in pieces {
            let output = matcher.push(piece);
            shown += &output.text;
            if output.matched.is_some() {
                return (shown, output.matched);
            }
        }
        (shown + &matcher.finish(), None)
    }

    #[test]
    fn matches_inside_a_piece_and_across_pieces() {
        assert_eq!(run(&["STOP"], &["oneSTOPtwo"]), ("one".into(), Some("STOP".into())));
        assert_eq!(run(&["STOP"], &["oneS", "T", "OPtwo"]), ("one".into(), Some("STOP".into())));
    }

    #[test]
    fn a_false_start_is_shown_in_the_end() {
        assert_eq!(run(&["STOP"], &["ST", "OX", " ST"]), ("STOX ST".into(), None));
    }

    #[test]
    fn holds_back_what_may_become_a_stop_string() {
        let mut matcher = StopMatcher::new(&["\n\nHuman:".to_owned()]);
        assert_eq!(matcher.push("hello\n\nHum").text, "hello");
        assert_eq!(matcher.push("ming").text, "\n\nHumming");
    }

    #[test]
    fn the_first_to_be_complete_wins_and_the_longer_of_two() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), ("xa".into(), Some("bc".into())));
        assert_eq!(run(&["bc", "abc"], &["xabc"]), ("x".into(), Some("abc".into())));
    }

    #[test]
    fn finds_a_stop_string_that_overlaps_its_own_start() {
        assert_eq!(run(&["aab"], &["aaaa", "b"]), ("aa".into(), Some("aab".into())));
    }

    #[test]
    fn a_stop_string_that_ends_in_a_passed_piece_is_text() {
        let mut matcher = StopMatcher::new(&["aba".to_owned()]);
        assert_eq!(matcher.pass("xaba"), "xab", "another may begin with its last letter");
        let output = matcher.push("ba");
        assert_eq!((output.text.as_str(), output.matched.as_deref()), ("", Some("aba")));
    }

    /// The definition, by brute force: the first end at which a stop string is complete, behind `first` bytes.
    fn expected(stops: &[&str], text: &str, first: usize) -> (String, Option<String>) {
        for end in first + 1..=text.len() {
            let seen = &text.as_bytes()[..end];
            let complete = stops.iter().filter(|stop| seen.ends_with(stop.as_bytes()));
            if let Some(stop) = complete.max_by_key(|stop| stop.len()) {
                return (text[..end - stop.len()].to_owned(), Some((*stop).to_owned()));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_output(
            stops in prop::collection::vec("[abé]{1,4}", 1..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..12),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &pieces), expected(&stops, &pieces.concat(), 0));
        }

        /// Without text that was shown before the stop string was complete: it may begin in what was passed.
        #[test]
        fn stop_strings_are_found_behind_passed_pieces(
            stops in prop::collection::vec("[abé]{1,4}", 1..4),
            passed in prop::collection::vec("[abcé]{0,5}", 0..6),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..6),
        ) {
            let list: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut matcher = StopMatcher::new(&stops);
            let mut shown: String = passed.iter().map(|piece| matcher.pass(piece)).collect();
            let mut matched = None;
            for piece in &pieces {
                let output = matcher.push(piece);
                shown += &output.text;
                matched = output.matched;
                if matched.is_some() {
                    break;
                }
            }
            if matched.is_none() {
                shown += &matcher.finish();
            }
            let text = passed.concat() + &pieces.concat();
            prop_assert_eq!((shown, matched), expected(&list, &text, passed.concat().len()));
        }
    }
}
