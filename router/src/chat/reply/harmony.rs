//! gpt-oss' replies: messages on channels. `analysis` is reasoning, `final` is text, and a message to `functions.NAME`
//! is a call. `<|channel|>`, `<|message|>` and the like are special tokens; a header comes before each message.

use super::events::Events;
use super::marker::Watch;

pub(super) const START: &str = "<|start|>";
pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const CONSTRAIN: &str = "<|constrain|>";
pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const END: &str = "<|end|>";
pub(super) const CALL: &str = "<|call|>";
pub(super) const RETURN: &str = "<|return|>";

/// Parses one reply. The prompt ends with `<|start|>assistant`, so a reply starts in a header.
pub(super) struct HarmonyReader {
    state: State,
    header: String,
    /// Whether any marker was found so far.
    is_harmony: bool,
    watch: Watch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Body(Channel),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    Reasoning,
    Text,
    Call { has_arguments: bool },
}

impl HarmonyReader {
    pub fn new() -> Self {
        Self { state: State::Header, header: String::new(), is_harmony: false, watch: header_watch() }
    }

    pub fn push(&mut self, text: String, out: &mut Events) {
        let mut rest = Some(text);
        while let Some(text) = rest {
            let seen = self.watch.push(&text);
            self.read(&seen.before, out);
            rest = seen.found.map(|(marker, after)| {
                self.on_marker(marker, out);
                after
            });
        }
    }

    pub fn finish(&mut self, out: &mut Events) {
        let held = self.watch.finish();
        self.read(&held, out);
        match self.state {
            // A reply without any marker is text.
            State::Header if !self.is_harmony => out.text(&self.header),
            // An incomplete call is not completed.
            State::Header | State::Body(_) => {}
        }
    }

    fn read(&mut self, text: &str, out: &mut Events) {
        match &mut self.state {
            State::Header => self.header.push_str(text),
            State::Body(Channel::Reasoning) => out.reasoning(text),
            State::Body(Channel::Text) => out.text(text),
            State::Body(Channel::Call { has_arguments }) => {
                let text = if *has_arguments { text } else { text.trim_start() };
                *has_arguments |= !text.is_empty();
                out.arguments(text);
            }
        }
    }

    fn on_marker(&mut self, marker: &str, out: &mut Events) {
        self.is_harmony = true;
        match (self.state, marker) {
            (State::Header, MESSAGE) => {
                let header = std::mem::take(&mut self.header);
                self.state = State::Body(open(&header, out));
                self.watch = Watch::new(&[START, END, CALL, RETURN]);
            }
            // Any other marker in a header separates words.
            (State::Header, _) => self.header.push(' '),
            (State::Body(_), _) => {
                self.end_call(out);
                self.state = State::Header;
                self.watch = header_watch();
            }
        }
    }

    fn end_call(&mut self, out: &mut Events) {
        if self.state == State::Body(Channel::Call { has_arguments: false }) {
            out.arguments("{}");
        }
    }
}

fn header_watch() -> Watch {
    Watch::new(&[START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN])
}

/// Opens the channel that a header names: `assistant analysis`, `commentary to=functions.NAME json` and the like,
/// without the markers.
fn open(header: &str, out: &mut Events) -> Channel {
    let function = header.split_whitespace().find_map(|word| word.strip_prefix("to="));
    match function {
        Some(recipient) => {
            out.call(recipient.strip_prefix("functions.").unwrap_or(recipient).to_owned());
            Channel::Call { has_arguments: false }
        }
        None if header.split_whitespace().any(|word| word == "analysis") => Channel::Reasoning,
        None => Channel::Text,
    }
}
