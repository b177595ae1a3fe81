//! Calls as bare JSON, at the start of a reply and nowhere else: one object, several with `;` between them, or a list;
//! Llama 3 may put `<|python_tag|>` before them. A reply that starts with another object is text.

use super::events::Events;
use super::format::Names;
use super::json_call::{CallScanner, Scan};
use super::marker::Prose;
use super::tool_parser::ToolParser;

pub(super) const PYTHON_TAG: &str = "<|python_tag|>";

pub(super) struct JsonCallsParser {
    names: Names,
    state: State,
    prose: Prose,
}

enum State {
    /// Before the first call, with the text read so far: blanks, the tag, the bracket of a list.
    Begin(String),
    Call {
        before: String,
        scanner: Box<CallScanner>,
    },
    /// After a call.
    Between,
    Text,
}

impl JsonCallsParser {
    pub fn new(names: Names) -> Self {
        Self { names, state: State::Begin(String::new()), prose: Prose::default() }
    }

    /// Starts after a marker that announces calls.
    pub fn announced(names: Names) -> Self {
        Self { names, state: State::Between, prose: Prose::default() }
    }

    fn begin(&mut self, read: String) -> Option<String> {
        let start = read.trim_start();
        let start = start.strip_prefix(PYTHON_TAG).map_or(start, str::trim_start);
        let start = start.strip_prefix('[').map_or(start, str::trim_start);
        if start.starts_with('{') {
            let (before, rest) = read.split_at(read.len() - start.len());
            self.state = State::Call { before: before.to_owned(), scanner: Box::new(CallScanner::new()) };
            return Some(rest.to_owned());
        }
        if start.is_empty() || PYTHON_TAG.starts_with(read.trim_start()) {
            self.state = State::Begin(read);
            return None;
        }
        self.state = State::Text;
        Some(read)
    }

    fn between(&mut self, text: &str) -> Option<String> {
        let rest = text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | '['));
        let rest = match rest.chars().next()? {
            '{' => {
                let scanner = Box::new(CallScanner::new());
                self.state = State::Call { before: String::new(), scanner };
                rest
            }
            ']' => {
                self.state = State::Text;
                &rest[1..]
            }
            _ => {
                self.state = State::Text;
                rest
            }
        };
        Some(rest.to_owned())
    }
}

impl ToolParser for JsonCallsParser {
    fn step(&mut self, text: &str, out: &mut Events) -> Option<String> {
        match &mut self.state {
            State::Begin(before) => {
                before.push_str(text);
                let read = std::mem::take(before);
                self.begin(read)
            }
            State::Call { before, scanner } => {
                match scanner.push(text, &|name| self.names.iter().any(|known| known == name), out) {
                    Scan::More => None,
                    Scan::Broken(used) if !scanner.is_emitted() => {
                        self.prose.push(&(std::mem::take(before) + &scanner.take_raw()), out);
                        self.state = State::Text;
                        Some(text[used..].to_owned())
                    }
                    Scan::Done(used) | Scan::Broken(used) => {
                        self.prose.before_call();
                        self.state = State::Between;
                        Some(text[used..].to_owned())
                    }
                }
            }
            State::Between => self.between(text),
            State::Text => {
                self.prose.push(text, out);
                None
            }
        }
    }

    fn finish(&mut self, out: &mut Events) {
        let held = match &mut self.state {
            State::Begin(before) => std::mem::take(before),
            State::Call { before, scanner } if !scanner.is_emitted() => {
                std::mem::take(before) + &scanner.take_raw()
            }
            State::Call { .. } | State::Between | State::Text => String::new(),
        };
        self.prose.push(&held, out);
        self.prose.finish(out);
    }
}
