//! Finds stop strings in text that arrives in pieces. Text that could still become a stop string is held back, so that
//! no part of one is ever returned, and the result does not depend on where the pieces were cut.

use super::stop_regex::{RegexWatch, StopRegexes};

/// Watches a text for stop strings, and for regular expressions in the same way. The first to be complete wins; of two
/// complete at once, the longer.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    regexes: Option<RegexWatch>,
    /// Received but not returned: the longest end of the text that starts a stop string.
    held: String,
}

/// The result of one piece of text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that may be sent to the client.
    pub text: String,
    /// The stop condition that was completed, if one was. No further piece may be added after this.
    pub matched: Option<Matched>,
}

/// A stop string, or what matches a regular expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matched {
    /// The text that ends the text.
    pub text: String,
    /// The stop string, or the regular expression.
    pub by: String,
}

/// The end of a text: how many bytes matched, and what they matched.
struct Complete {
    len: usize,
    by: String,
}

impl StopMatcher {
    /// Watches for these stop strings, of which empty ones are ignored, and regular expressions.
    pub fn new(stops: &[String], regexes: Option<StopRegexes>) -> Self {
        let patterns = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| Pattern::new(stop)).collect();
        Self { patterns, regexes: regexes.map(RegexWatch::new), held: String::new() }
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
        if self.patterns.is_empty() && self.regexes.is_none() {
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
        let of_regexes = self.regexes.as_ref().map(RegexWatch::num_undecided);
        let undecided =
            self.patterns.iter().map(|pattern| pattern.matched).chain(of_regexes).max().unwrap_or(0);
        self.held.drain(..self.held.len() - undecided).collect()
    }

    /// Returns the text that was held back, at the end of a text in which no stop string was completed.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn advance(&mut self, byte: u8) -> Option<Complete> {
        let complete = self.patterns.iter_mut().filter_map(|pattern| pattern.advance(byte));
        let stop = complete.max_by_key(|stop| stop.len());
        let stop = stop.map(|stop| Complete { len: stop.len(), by: stop.to_owned() });
        let matched = self.regexes.as_mut().and_then(|regexes| regexes.advance(byte));
        let matched = matched.map(|found| Complete { len: found.len, by: found.pattern });
        [matched, stop].into_iter().flatten().max_by_key(|complete| complete.len)
    }

    fn cut_at(&mut self, end: usize, Complete { len, by }: Complete) -> StopOutput {
        let mut text = std::mem::take(&mut self.held);
        text.truncate(end);
        let matched = text.split_off(end - len);
        StopOutput { text, matched: Some(Matched { text: matched, by }) }
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
        let mut matcher = StopMatcher::new(&stops, None);
        let mut shown = String::new();
        for piece in pieces {
            let output = matcher.push(piece);
            shown += &output.text;
            if let Some(matched) = output.matched {
                assert_eq!(matched.text, matched.by);
                return (shown, Some(matched.by));
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
        let mut matcher = StopMatcher::new(&["\n\nHuman:".to_owned()], None);
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
        let mut matcher = StopMatcher::new(&["aba".to_owned()], None);
        assert_eq!(matcher.pass("xaba"), "xab", "another may begin with its last letter");
        let output = matcher.push("ba");
        assert_eq!((output.text.as_str(), output.matched.unwrap().by.as_str()), ("", "aba"));
    }

    fn run_both(stops: &[&str], regexes: &[&str], pieces: &[&str]) -> (String, Option<Matched>) {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let regexes = StopRegexes::new(&owned(regexes)).unwrap();
        let mut matcher = StopMatcher::new(&owned(stops), Some(regexes));
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
    fn regular_expressions_end_a_text_as_stop_strings_do() {
        let matched = |text: &str, by: &str| Some(Matched { text: text.into(), by: by.into() });
        for pieces in [&["a 12", "3. b"][..], &["a 123. b"], &["a", " ", "1", "2", "3", ".", " b"]] {
            assert_eq!(run_both(&["b"], &["[0-9]+[.]"], pieces), ("a ".into(), matched("123.", "[0-9]+[.]")));
        }
        assert_eq!(run_both(&["bcd"], &["b.d"], &["abcd"]), ("a".into(), matched("bcd", "bcd")));
        assert_eq!(run_both(&["cd"], &["b.d"], &["abcd"]), ("a".into(), matched("bcd", "b.d")));
        assert_eq!(run_both(&["cd"], &["b.d"], &["bxc", " é"]), ("bxc é".into(), None));
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
            let mut matcher = StopMatcher::new(&stops, None);
            let mut shown: String = passed.iter().map(|piece| matcher.pass(piece)).collect();
            let mut matched = None;
            for piece in &pieces {
                let output = matcher.push(piece);
                shown += &output.text;
                matched = output.matched.map(|matched| matched.by);
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
