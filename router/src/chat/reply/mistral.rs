//! Mistral's calls after `[TOOL_CALLS]`: a list of JSON objects, or, for later models, `name[ARGS]{..}`, where each
//! call has its own marker.

use super::events::Events;
use super::format::Names;
use super::json_call::ValueScanner;
use super::json_calls::JsonCallsParser;
use super::marker::{Prose, Watch};
use super::tool_parser::ToolParser;

pub(super) const OPEN: &str = "[TOOL_CALLS]";
pub(super) const ARGS: &str = "[ARGS]";

pub(super) struct MistralParser {
    names: Names,
    state: State,
    prose: Prose,
}

enum State {
    Outside(Watch),
    /// After the marker, while it is not known which of the two it is.
    Opened,
    List(JsonCallsParser),
    /// A name, and maybe a call's id in brackets.
    Name(String),
    Arguments(ValueScanner),
}

impl MistralParser {
    pub fn new(names: Names) -> Self {
        Self { names, state: outside(), prose: Prose::default() }
    }
}

impl ToolParser for MistralParser {
    fn step(&mut self, text: &str, out: &mut Events) -> Option<String> {
        match &mut self.state {
            State::Outside(watch) => {
                let seen = watch.push(text);
                self.prose.push(&seen.before, out);
                let (_, after) = seen.found?;
                self.prose.before_call();
                self.state = State::Opened;
                Some(after)
            }
            State::Opened => {
                let rest = text.trim_start();
                self.state = match rest.chars().next()? {
                    '[' | '{' => State::List(JsonCallsParser::announced(self.names.clone())),
                    _ => State::Name(String::new()),
                };
                Some(rest.to_owned())
            }
            State::List(calls) => {
                calls.push(text.to_owned(), out);
                None
            }
            State::Name(name) => {
                name.push_str(text);
                let start = name.find('{')?;
                let arguments = name[start..].to_owned();
                let function = name[..start].split('[').next().unwrap_or_default();
                out.call(function.trim().to_owned());
                self.state = State::Arguments(ValueScanner::default());
                Some(arguments)
            }
            State::Arguments(scanner) => {
                let end = scanner.push(text);
                out.arguments(&text[..end.unwrap_or(text.len())]);
                let rest = text[end?..].to_owned();
                self.state = outside();
                Some(rest)
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
            State::List(calls) => calls.finish(out),
            State::Name(name) => out.text(name.as_str()),
            State::Opened | State::Arguments(_) => {}
        }
    }
}

fn outside() -> State {
    State::Outside(Watch::new(&[OPEN]))
}
