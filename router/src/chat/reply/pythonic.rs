//! Llama 4's calls: a reply that is a Python list of calls, `[f(a=1, b="x"), g()]`. A call is emitted when it is
//! complete, because only then its arguments can be converted to JSON.

use serde_json::{Map, Value};

use super::events::Events;
use super::format::Names;
use super::marker::{Prose, Watch};
use super::tool_parser::ToolParser;

pub(super) const START: &str = "<|python_start|>";
pub(super) const END: &str = "<|python_end|>";

/// A longer text is no call: with every new piece, an incomplete call is parsed again from its start.
const MAX_CALL_BYTES: usize = 64 << 10;

pub(super) struct PythonicParser {
    names: Names,
    state: State,
    prose: Prose,
}

enum State {
    /// The text read so far that may be calls, and whether some calls were emitted.
    Calls {
        read: String,
        emitted: bool,
    },
    Text(Watch),
}

impl PythonicParser {
    pub fn new(names: Names) -> Self {
        let state = State::Calls { read: String::new(), emitted: false };
        Self { names, state, prose: Prose::default() }
    }

    /// Emits the calls that are complete; returns the rest, whether any call was emitted, and whether the rest may
    /// become one.
    fn read(&self, read: &str, mut emitted: bool, out: &mut Events) -> (String, bool, bool) {
        let mut rest = read;
        loop {
            let start = match self.next_call(rest, emitted) {
                Next::Call(start) => start,
                Next::Unclear => return (rest.to_owned(), emitted, true),
                Next::Over(rest) => return (rest.to_owned(), emitted, false),
            };
            let Some(len) = call_len(start) else { return (rest.to_owned(), emitted, true) };
            let Some((name, arguments)) =
                parse_call(&start[..len]).filter(|(name, _)| self.is_function(name))
            else {
                return (rest.to_owned(), emitted, false);
            };
            out.call(name.to_owned());
            out.arguments(Value::Object(arguments).to_string());
            emitted = true;
            rest = &start[len..];
        }
    }

    fn is_function(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    fn next_call<'a>(&self, rest: &'a str, emitted: bool) -> Next<'a> {
        let start = rest.trim_start();
        let start = if emitted { start } else { start.strip_prefix(START).map_or(start, str::trim_start) };
        if start.is_empty() || (!emitted && START.starts_with(start)) {
            return Next::Unclear;
        }
        match (emitted, start.as_bytes()[0]) {
            (false, b'[') | (true, b',') => self.name_at(start[1..].trim_start(), rest),
            (true, b']') => Next::Over(&start[1..]),
            _ => Next::Over(rest),
        }
    }

    fn name_at<'a>(&self, start: &'a str, rest: &'a str) -> Next<'a> {
        let name_len = start.find(|c: char| !(c.is_alphanumeric() || "_.-".contains(c)));
        match name_len {
            None => Next::Unclear,
            Some(len) if start[len..].starts_with('(') && self.is_function(&start[..len]) => {
                Next::Call(start)
            }
            Some(_) => Next::Over(rest),
        }
    }
}

enum Next<'a> {
    Call(&'a str),
    Unclear,
    /// No more calls; this is text.
    Over(&'a str),
}

impl ToolParser for PythonicParser {
    fn step(&mut self, text: &str, out: &mut Events) -> Option<String> {
        match &mut self.state {
            State::Calls { read, emitted } => {
                read.push_str(text);
                let (read, emitted) = (std::mem::take(read), *emitted);
                let (rest, emitted, goes_on) = self.read(&read, emitted, out);
                if emitted {
                    self.prose.before_call();
                }
                if goes_on && rest.len() <= MAX_CALL_BYTES {
                    self.state = State::Calls { read: rest, emitted };
                    return None;
                }
                self.state = State::Text(Watch::new(&[END]));
                Some(rest)
            }
            // All of it is text, except the end marker.
            State::Text(watch) => {
                let seen = watch.push(text);
                self.prose.push(&seen.before, out);
                seen.found.map(|(_, after)| after)
            }
        }
    }

    fn finish(&mut self, out: &mut Events) {
        let held = match &mut self.state {
            State::Calls { read, .. } => std::mem::take(read),
            State::Text(watch) => watch.finish(),
        };
        self.prose.push(&held, out);
        self.prose.finish(out);
    }
}

/// Length of `name(..)`, if it is complete.
fn call_len(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut escaped) = (0u32, None, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            (None, _) => {}
        }
    }
    None
}

fn parse_call(call: &str) -> Option<(&str, Map<String, Value>)> {
    let (name, rest) = call.split_once('(')?;
    let mut reader = Reader { rest: rest.strip_suffix(')')? };
    let mut arguments = Map::new();
    while !reader.skip_blank().is_empty() {
        let (key, value) = reader.rest.split_once('=')?;
        let key = key.trim().to_owned();
        reader.rest = value;
        arguments.insert(key, reader.value(0)?);
        reader.accept(',');
    }
    Some((name, arguments))
}

/// A call with deeper literals is not read as one.
const MAX_DEPTH: u32 = 64;

/// Reads Python literals as JSON.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn skip_blank(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        self.rest
    }

    fn accept(&mut self, c: char) -> bool {
        let rest = self.skip_blank().strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.skip_blank().chars().next()? {
            quote @ ('"' | '\'') => self.string(quote).map(Value::String),
            '[' => self.items('[', ']', depth),
            '(' => self.items('(', ')', depth),
            '{' => self.object(depth),
            _ => self.scalar(),
        }
    }

    fn items(&mut self, open: char, close: char, depth: u32) -> Option<Value> {
        self.accept(open);
        let mut items = Vec::new();
        while !self.accept(close) {
            items.push(self.value(depth + 1)?);
            self.accept(',');
        }
        Some(Value::Array(items))
    }

    fn object(&mut self, depth: u32) -> Option<Value> {
        self.accept('{');
        let mut fields = Map::new();
        while !self.accept('}') {
            let Value::String(key) = self.value(depth + 1)? else { return None };
            if !self.accept(':') {
                return None;
            }
            fields.insert(key, self.value(depth + 1)?);
            self.accept(',');
        }
        Some(Value::Object(fields))
    }

    fn string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => text.push(unescaped(chars.next()?.1)),
                c if c == quote => {
                    self.rest = &self.rest[at + c.len_utf8()..];
                    return Some(text);
                }
                c => text.push(c),
            }
        }
        None
    }

    fn scalar(&mut self) -> Option<Value> {
        let end = self.rest.find(|c: char| ",)]}:".contains(c) || c.is_whitespace());
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        match word {
            "True" => Some(true.into()),
            "False" => Some(false.into()),
            "None" => Some(Value::Null),
            word => serde_json::from_str(word).ok(),
        }
    }
}

fn unescaped(c: char) -> char {
    match c {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        c => c,
    }
}
