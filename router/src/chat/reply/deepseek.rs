//! DeepSeek's calls: each between two markers, with a separator between name and arguments. V3 and R1 write `function`
//! before the separator, the name after it, and the arguments in a code fence; V3.1 writes only name and arguments.

use super::events::Events;
use super::json_call::ValueScanner;
use super::marker::{Prose, Watch};
use super::tool_parser::ToolParser;

pub(super) const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CALLS_END: &str = "<｜tool▁calls▁end｜>";
pub(super) const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
pub(super) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";

pub(super) struct DeepSeekParser {
    state: State,
    prose: Prose,
}

enum State {
    Outside(Watch),
    /// The text before the arguments: the name, and what is written around it.
    Head(String),
    Arguments(ValueScanner),
    Closing(Watch),
}

impl DeepSeekParser {
    pub fn new() -> Self {
        Self { state: outside(), prose: Prose::default() }
    }
}

impl ToolParser for DeepSeekParser {
    fn step(&mut self, text: &str, out: &mut Events) -> Option<String> {
        match &mut self.state {
            State::Outside(watch) => {
                let seen = watch.push(text);
                self.prose.push(&seen.before, out);
                let (marker, after) = seen.found?;
                self.prose.before_call();
                self.state = if marker == CALL_BEGIN { State::Head(String::new()) } else { outside() };
                Some(after)
            }
            State::Head(head) => {
                head.push_str(text);
                let start = head.find('{')?;
                let arguments = head[start..].to_owned();
                out.call(name_in(&head[..start]).to_owned());
                self.state = State::Arguments(ValueScanner::default());
                Some(arguments)
            }
            State::Arguments(scanner) => {
                let end = scanner.push(text);
                out.arguments(&text[..end.unwrap_or(text.len())]);
                let rest = text[end?..].to_owned();
                self.state = State::Closing(Watch::new(&[CALL_END]));
                Some(rest)
            }
            State::Closing(watch) => {
                let (_, after) = watch.push(text).found?;
                self.state = outside();
                Some(after)
            }
        }
    }

    fn finish(&mut self, out: &mut Events) {
        match &mut self.state {
            State::Outside(watch) => {
                let held = watch.finish();
                self.prose.push(&held, out);
                self.prose.finish(out);
            }
            State::Head(head) => out.text(head.as_str()),
            State::Arguments(_) | State::Closing(_) => {}
        }
    }
}

/// `function<sep>name\n```json\n`, or `name<sep>`.
fn name_in(head: &str) -> &str {
    let (before, after) = head.split_once(SEPARATOR).unwrap_or((head, ""));
    let after = after.lines().next().unwrap_or_default().trim();
    if after.is_empty() { before.trim() } else { after }
}

fn outside() -> State {
    State::Outside(Watch::new(&[CALLS_BEGIN, CALL_BEGIN, CALLS_END]))
}
