//! Which part of a sequence's text is shown, and which of its tokens: stop strings, and what may become one, are held
//! back. Works on pieces of text, one for each token.

use std::collections::VecDeque;

use penstock_scheduler::FinishReason;

use super::finish::Finish;
use super::validation::Ending;
use crate::base::dialect::Dialect;
use crate::text::stop::{Matched, StopMatcher, StopOutput};

/// The text of one sequence.
pub(super) struct VisibleText {
    dialect: Dialect,
    min_tokens: u32,
    includes_stop: bool,
    stop: StopMatcher,
    matched: Option<Matched>,
    text: String,
    num_tokens: u32,
    num_visible: u32,
    /// Bytes of all pieces, and of what was shown of them.
    received: usize,
    shown: usize,
    /// For each token that is not visible yet, where its piece begins in the text.
    starts: VecDeque<usize>,
}

/// The result of adding one more piece of text.
#[derive(Debug, PartialEq)]
pub(super) struct Visible {
    /// The text that may be shown now.
    pub delta: String,
    /// Set if the sequence ends here.
    pub finish: Option<Finish>,
    /// How many of the tokens so far are visible: those with any text that is shown.
    pub num_tokens: u32,
}

impl VisibleText {
    pub fn new(dialect: Dialect, ending: &Ending) -> Self {
        Self {
            dialect,
            min_tokens: ending.min_tokens,
            includes_stop: ending.includes_stop,
            stop: StopMatcher::new(&ending.stop, ending.stop_regexes.clone()),
            matched: None,
            text: String::new(),
            num_tokens: 0,
            num_visible: 0,
            received: 0,
            shown: 0,
            starts: VecDeque::new(),
        }
    }

    /// Adds the piece of one more token; `reason` is set if the shards say that it is the last.
    pub fn push(&mut self, piece: &str, reason: Option<FinishReason>) -> Visible {
        self.num_tokens += 1;
        self.starts.push_back(self.received);
        self.received += piece.len();
        let StopOutput { text: mut delta, matched } = self.search(piece, reason);
        let is_matched = matched.is_some();
        let finish = if is_matched { Some(Finish::Stop) } else { reason.map(Finish::from) };
        if self.includes_stop {
            delta.extend(matched.as_ref().map(|matched| matched.text.as_str()));
        }
        self.text += &delta;
        self.shown += delta.len();
        // Where nothing was cut off, all is shown.
        self.show_tokens(if finish.is_some() && !is_matched { usize::MAX } else { self.shown });
        self.keep_stop(matched);
        Visible { delta, finish, num_tokens: self.num_visible }
    }

    /// The whole text, and the stop string that ended it. On native routes the text includes the stop string, as in TGI.
    pub fn take(&mut self) -> (String, Option<Matched>) {
        (std::mem::take(&mut self.text), self.matched.take())
    }

    fn search(&mut self, piece: &str, reason: Option<FinishReason>) -> StopOutput {
        // TGI looks at the length and at end-of-sequence tokens first, OpenAI at stop strings.
        let is_over = reason.is_some() && self.dialect == Dialect::Native;
        let mut output = if is_over {
            StopOutput { text: self.stop.finish() + piece, matched: None }
        } else if self.num_tokens <= self.min_tokens {
            StopOutput { text: self.stop.pass(piece), matched: None }
        } else {
            self.stop.push(piece)
        };
        if reason.is_some() && output.matched.is_none() {
            output.text += &self.stop.finish();
        }
        output
    }

    fn show_tokens(&mut self, end: usize) {
        while self.starts.front().is_some_and(|&start| start < end) {
            self.starts.pop_front();
            self.num_visible += 1;
        }
    }

    fn keep_stop(&mut self, matched: Option<Matched>) {
        if let Some(matched) = matched {
            if self.dialect == Dialect::Native {
                self.text += &matched.text;
            }
            self.matched = Some(matched);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(stop: &[&str]) -> Ending {
        Ending { stop: stop.iter().map(|&stop| stop.to_owned()).collect(), ..Ending::default() }
    }

    /// The deltas, and how many tokens are visible after each piece; no piece is the last.
    fn run(ending: &Ending, pieces: &[&str]) -> (Vec<String>, Vec<u32>) {
        let mut text = VisibleText::new(Dialect::CHAT, ending);
        pieces
            .iter()
            .map(|piece| text.push(piece, None))
            .map(|visible| (visible.delta, visible.num_tokens))
            .unzip()
    }

    #[test]
    fn tokens_of_a_stop_string_never_become_visible() {
        let (deltas, visible) = run(&ending(&["\n\nHuman:"]), &["hi\n", "\nHu", "man:"]);
        assert_eq!(deltas, ["hi", "", ""]);
        assert_eq!(visible, [1, 1, 1]);
    }

    #[test]
    fn tokens_become_visible_with_their_text() {
        let (deltas, visible) = run(&ending(&["aab"]), &["a", "a", "a", "a", "b"]);
        assert_eq!(deltas, ["", "", "a", "a", ""]);
        assert_eq!(visible, [0, 0, 1, 2, 2]);
        let (deltas, visible) = run(&ending(&["aab"]), &["", "", "é", "x"]);
        assert_eq!(deltas, ["", "", "é", "x"], "a character of three tokens");
        assert_eq!(visible, [0, 0, 3, 4]);
    }

    #[test]
    fn the_last_token_shows_all_that_is_held_back() {
        let mut text = VisibleText::new(Dialect::CHAT, &ending(&["abc"]));
        assert_eq!(text.push("xab", None).delta, "x");
        let last = text.push("", Some(FinishReason::Length));
        assert_eq!(
            last,
            Visible { delta: "ab".into(), finish: Some(Finish::Length), num_tokens: 2 },
            "also a token without text"
        );
    }

    #[test]
    fn a_stop_string_is_shown_if_asked_for() {
        let asked = Ending { includes_stop: true, ..ending(&["b"]) };
        let mut text = VisibleText::new(Dialect::CHAT, &asked);
        let last = text.push("abc", None);
        assert_eq!(last, Visible { delta: "ab".into(), finish: Some(Finish::Stop), num_tokens: 1 });
        assert_eq!(text.take(), ("ab".into(), Some(Matched { text: "b".into(), by: "b".into() })));
    }

    #[test]
    fn stop_strings_are_looked_for_behind_the_least_number_of_tokens() {
        let late = Ending { min_tokens: 2, ..ending(&["b"]) };
        let mut text = VisibleText::new(Dialect::CHAT, &late);
        for piece in ["ab", "b"] {
            assert_eq!(text.push(piece, None).finish, None);
        }
        assert_eq!(text.push("cb", None).finish, Some(Finish::Stop));
        assert_eq!(text.take().0, "abbc");
    }
}
