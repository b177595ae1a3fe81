//! The input of a custom tool, taken out of the arguments of a call while they are written: `{"input": "a\nb"}` is a
//! text of two lines. Arguments of any other form are the input as they are.

use crate::chat::tools::INPUT;

/// Turns pieces of arguments into pieces of an input.
#[derive(Debug, Default)]
pub struct CustomInput {
    state: State,
    /// Text that is not decoded yet: the start of the arguments, or an escape.
    held: String,
    /// The first half of a character that JSON writes as two escapes.
    high_surrogate: Option<u16>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the text.
    #[default]
    Opening,
    Text,
    /// After the text.
    Closed,
    /// The arguments have another form.
    Other,
}

impl CustomInput {
    /// The text of one more piece of arguments.
    pub fn push(&mut self, piece: &str) -> String {
        match self.state {
            State::Closed => String::new(),
            State::Other => piece.to_owned(),
            State::Text => self.decode(piece),
            State::Opening => {
                self.held.push_str(piece);
                match opening(&self.held) {
                    Opening::Incomplete => String::new(),
                    Opening::Other => self.as_it_is(),
                    Opening::Text(start) => {
                        self.state = State::Text;
                        let text = std::mem::take(&mut self.held);
                        self.decode(&text[start..])
                    }
                }
            }
        }
    }

    /// The text that is left at the end of the reply. An incomplete escape is left out.
    pub fn finish(&mut self) -> String {
        if self.state == State::Opening { self.as_it_is() } else { String::new() }
    }

    fn as_it_is(&mut self) -> String {
        self.state = State::Other;
        std::mem::take(&mut self.held)
    }

    fn decode(&mut self, piece: &str) -> String {
        let mut text = String::new();
        for c in piece.chars() {
            match c {
                _ if self.state == State::Closed => break,
                _ if !self.held.is_empty() => self.escape(c, &mut text),
                '\\' => self.held.push(c),
                '"' => self.state = State::Closed,
                c => {
                    self.high_surrogate = None;
                    text.push(c);
                }
            }
        }
        text
    }

    /// Adds a character to the escape, and decodes it if it is complete.
    fn escape(&mut self, c: char, text: &mut String) {
        self.held.push(c);
        let decoded = match self.held.as_bytes() {
            [_, b'u', digits @ ..] if digits.len() < 4 => return,
            [_, b'u', ..] => self.unicode(),
            [_, b'n'] => Some('\n'),
            [_, b't'] => Some('\t'),
            [_, b'r'] => Some('\r'),
            [_, b'b'] => Some('\u{8}'),
            [_, b'f'] => Some('\u{c}'),
            _ => Some(c),
        };
        text.extend(decoded);
        self.held.clear();
    }

    /// The character of `\uXXXX`; `None` if it is the first half of one.
    fn unicode(&mut self) -> Option<char> {
        let unit =
            self.held.get(2..).and_then(|digits| u16::from_str_radix(digits, 16).ok()).unwrap_or(0xfffd);
        let units = [self.high_surrogate.take().unwrap_or(unit), unit];
        let is_second = (0xdc00..0xe000).contains(&unit);
        if (0xd800..0xdc00).contains(&unit) {
            self.high_surrogate = Some(unit);
            return None;
        }
        let units = if is_second { &units[..] } else { &units[1..] };
        char::decode_utf16(units.iter().copied()).next().and_then(Result::ok).or(Some('\u{fffd}'))
    }
}

enum Opening {
    /// The text starts at this byte.
    Text(usize),
    Incomplete,
    Other,
}

/// How far the arguments have come: `{`, `"input"`, `:` and `"`, with blanks between them.
fn opening(arguments: &str) -> Opening {
    let mut rest = arguments;
    for expected in ["{", &format!("\"{INPUT}\""), ":", "\""] {
        rest = rest.trim_start();
        match rest.strip_prefix(expected) {
            Some(after) => rest = after,
            None if expected.starts_with(rest) => return Opening::Incomplete,
            None => return Opening::Other,
        }
    }
    Opening::Text(arguments.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The input of arguments that arrive in pieces of `size` characters.
    fn input(arguments: &str, size: usize) -> String {
        let mut decoder = CustomInput::default();
        let chars: Vec<char> = arguments.chars().collect();
        let pieces = chars.chunks(size).map(|piece| piece.iter().collect::<String>());
        let text: String = pieces.map(|piece| decoder.push(&piece)).collect();
        text + &decoder.finish()
    }

    #[test]
    fn the_text_is_decoded_however_it_is_split() {
        for (arguments, text) in [
            (r#"{"input": ""}"#, ""),
            (r#" { "input" :"a\nb \"c\" \\ \/ \u00e9\t"} "#, "a\nb \"c\" \\ / é\t"),
            (r#"{"input":"\ud83d\ude00!"}"#, "😀!"),
            (r#"{"input":"\ud83dx\ude00"}"#, "x\u{fffd}"),
            (r#"{"input": "cut \u00"#, "cut "),
            (r#"{"input": "cut"#, "cut"),
            (r#"{"code": "x"}"#, r#"{"code": "x"}"#),
            (r#"{"input": 5}"#, r#"{"input": 5}"#),
            ("{}", "{}"),
            ("{\"in", "{\"in"),
        ] {
            for size in 1..6 {
                assert_eq!(input(arguments, size), text, "{arguments} {size}");
            }
        }
    }
}
