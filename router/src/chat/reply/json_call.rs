//! One call as a JSON object, `{"name": .., "arguments": {..}}`, parsed while it is written: the name is emitted as
//! soon as it is known, and the arguments piece by piece.

use super::events::Events;

/// Finds the end of a JSON value without parsing it.
#[derive(Debug, Default)]
pub(super) struct ValueScanner {
    depth: u32,
    in_string: bool,
    escaped: bool,
    is_scalar: bool,
}

impl ValueScanner {
    /// Where the value ends, if it ends in this piece. The first piece starts with the value.
    pub fn push(&mut self, text: &str) -> Option<usize> {
        text.char_indices().find_map(|(at, c)| self.step(at, c))
    }

    fn step(&mut self, at: usize, c: char) -> Option<usize> {
        if self.in_string {
            return self.step_in_string(at, c);
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' if self.depth == 0 => return Some(at),
            '}' | ']' => {
                self.depth -= 1;
                return (self.depth == 0).then_some(at + 1);
            }
            ',' if self.depth == 0 => return Some(at),
            c if c.is_whitespace() && self.depth == 0 && self.is_scalar => return Some(at),
            _ => self.is_scalar = self.depth == 0,
        }
        None
    }

    fn step_in_string(&mut self, at: usize, c: char) -> Option<usize> {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = true,
            '"' => {
                self.in_string = false;
                return (self.depth == 0).then_some(at + 1);
            }
            _ => {}
        }
        None
    }
}

/// How far a piece of text was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan {
    /// To its end, and the call goes on.
    More,
    /// The call ends before this byte.
    Done(usize),
    /// The text up to this byte is no call. [`CallScanner::take_raw`] returns it, if no call was emitted.
    Broken(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    Key,
    InKey,
    Colon,
    BeforeValue,
    InValue,
}

/// Parses one call.
#[derive(Debug)]
pub(super) struct CallScanner {
    state: State,
    scanner: ValueScanner,
    key: String,
    value: String,
    /// Whether the value is emitted piece by piece.
    streams: bool,
    /// Arguments not yet emitted; `None` if there were none so far.
    arguments: Option<String>,
    is_emitted: bool,
    /// All text so far, until the call is emitted.
    raw: String,
}

/// Returns whether a name is that of a function.
pub(super) type IsKnown<'a> = &'a dyn Fn(&str) -> bool;

impl CallScanner {
    pub fn new() -> Self {
        Self {
            state: State::Start,
            scanner: ValueScanner::default(),
            key: String::new(),
            value: String::new(),
            streams: false,
            arguments: None,
            is_emitted: false,
            raw: String::new(),
        }
    }

    /// Reads one more piece of text.
    pub fn push(&mut self, text: &str, is_known: IsKnown<'_>, out: &mut Events) -> Scan {
        let mut at = 0;
        while at < text.len() {
            match self.step(&text[at..], is_known, out) {
                (used, Scan::More) => at += used,
                (used, Scan::Done(_)) => return Scan::Done(at + used),
                (used, Scan::Broken(_)) => return Scan::Broken(at + used),
            }
        }
        Scan::More
    }

    /// The text of a call that was never emitted.
    pub fn take_raw(&mut self) -> String {
        std::mem::take(&mut self.raw)
    }

    /// Whether the call's name was emitted.
    pub fn is_emitted(&self) -> bool {
        self.is_emitted
    }

    /// Reads a part of the text; returns its length in bytes, and how far the call is.
    fn step(&mut self, rest: &str, is_known: IsKnown<'_>, out: &mut Events) -> (usize, Scan) {
        let blank = rest.len() - rest.trim_start().len();
        let next = match (self.state, rest.as_bytes().first()) {
            (State::InKey | State::InValue, _) => return self.read_value(rest, is_known, out),
            _ if blank > 0 => return self.consume(&rest[..blank]),
            (State::BeforeValue, first) => {
                self.streams = is_arguments(&self.key) && first == Some(&b'{');
                self.state = State::InValue;
                return (0, Scan::More);
            }
            (State::Key, Some(b'"')) => {
                self.state = State::InKey;
                return (0, Scan::More);
            }
            (State::Key, Some(b'}')) => return self.close(out),
            (State::Start, Some(b'{')) | (State::Key, Some(b',')) => State::Key,
            (State::Colon, Some(b':')) => State::BeforeValue,
            (State::Start | State::Key | State::Colon, _) => return (0, Scan::Broken(0)),
        };
        self.state = next;
        self.consume(&rest[..1])
    }

    fn consume(&mut self, piece: &str) -> (usize, Scan) {
        if !self.is_emitted {
            self.raw.push_str(piece);
        }
        (piece.len(), Scan::More)
    }

    fn read_value(&mut self, rest: &str, is_known: IsKnown<'_>, out: &mut Events) -> (usize, Scan) {
        let end = self.scanner.push(rest);
        let piece = &rest[..end.unwrap_or(rest.len())];
        let (used, more) = self.consume(piece);
        if self.streams {
            self.emit_arguments(piece, out);
        } else {
            self.value.push_str(piece);
        }
        if end.is_none() {
            return (used, more);
        }
        self.scanner = ValueScanner::default();
        let value = std::mem::take(&mut self.value);
        let is_valid = match self.state {
            State::InKey => self.end_key(&value),
            _ => self.end_value(&value, is_known, out),
        };
        (used, if is_valid { Scan::More } else { Scan::Broken(used) })
    }

    fn end_key(&mut self, literal: &str) -> bool {
        self.state = State::Colon;
        let key = serde_json::from_str(literal);
        key.map(|key| self.key = key).is_ok()
    }

    fn end_value(&mut self, literal: &str, is_known: IsKnown<'_>, out: &mut Events) -> bool {
        self.state = State::Key;
        match self.key.as_str() {
            "name" if !self.is_emitted => match serde_json::from_str::<String>(literal) {
                Ok(name) if is_known(&name) => self.emit_call(name, out),
                _ => return false,
            },
            key if is_arguments(key) && !std::mem::take(&mut self.streams) => {
                self.emit_arguments(&arguments_in(literal), out);
            }
            _ => {}
        }
        true
    }

    fn emit_call(&mut self, name: String, out: &mut Events) {
        out.call(name);
        self.is_emitted = true;
        self.raw.clear();
        if let Some(arguments) = &mut self.arguments {
            out.arguments(std::mem::take(arguments));
        }
    }

    fn emit_arguments(&mut self, piece: &str, out: &mut Events) {
        let waiting = self.arguments.get_or_insert_default();
        if self.is_emitted {
            out.arguments(piece);
        } else {
            waiting.push_str(piece);
        }
    }

    fn close(&mut self, out: &mut Events) -> (usize, Scan) {
        let (used, _) = self.consume("}");
        if !self.is_emitted {
            return (used, Scan::Broken(used));
        }
        if self.arguments.is_none() {
            out.arguments("{}");
        }
        (used, Scan::Done(used))
    }
}

fn is_arguments(key: &str) -> bool {
    matches!(key, "arguments" | "parameters")
}

/// The arguments as JSON: some models write the text of an object, or leave it out.
fn arguments_in(literal: &str) -> String {
    match serde_json::from_str(literal) {
        Ok(serde_json::Value::String(text)) if !text.trim().is_empty() => text,
        Ok(serde_json::Value::String(_) | serde_json::Value::Null) => "{}".to_owned(),
        _ => literal.to_owned(),
    }
}
