//! Hermes' and Qwen's calls: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, with text around them.

use super::events::Events;
use super::json_call::{CallScanner, Scan};
use super::marker::{Prose, Watch};
use super::tool_parser::ToolParser;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

pub(super) struct HermesParser {
    state: State,
    prose: Prose,
}

enum State {
    Outside(Watch),
    Inside(Box<CallScanner>),
    /// Text between a call and its closing marker is ignored.
    Closing(Watch),
}

impl HermesParser {
    pub fn new() -> Self {
        Self { state: outside(), prose: Prose::default() }
    }
}

impl ToolParser for HermesParser {
    fn step(&mut self, text: &str, out: &mut Events) -> Option<String> {
        match &mut self.state {
            State::Outside(watch) => {
                let seen = watch.push(text);
                self.prose.push(&seen.before, out);
                let (_, after) = seen.found?;
                self.state = inside();
                Some(after)
            }
            State::Inside(scanner) => match scanner.push(text, &|_| true, out) {
                Scan::More => None,
                Scan::Broken(used) if !scanner.is_emitted() => {
                    self.prose.push(&(OPEN.to_owned() + &scanner.take_raw()), out);
                    self.state = outside();
                    Some(text[used..].to_owned())
                }
                Scan::Done(used) | Scan::Broken(used) => {
                    self.prose.before_call();
                    self.state = State::Closing(Watch::new(&[OPEN, CLOSE]));
                    Some(text[used..].to_owned())
                }
            },
            State::Closing(watch) => {
                let (marker, after) = watch.push(text).found?;
                self.state = if marker == OPEN { inside() } else { outside() };
                Some(after)
            }
        }
    }

    fn finish(&mut self, out: &mut Events) {
        let held = match &mut self.state {
            State::Outside(watch) => watch.finish(),
            State::Inside(scanner) if !scanner.is_emitted() => OPEN.to_owned() + &scanner.take_raw(),
            State::Inside(_) | State::Closing(_) => return,
        };
        self.prose.push(&held, out);
        self.prose.finish(out);
    }
}

fn outside() -> State {
    State::Outside(Watch::new(&[OPEN]))
}

fn inside() -> State {
    State::Inside(Box::new(CallScanner::new()))
}
