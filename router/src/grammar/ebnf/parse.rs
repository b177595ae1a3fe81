//! Reads EBNF. Errors say in which line.

use super::rules::{Atom, Choice, Item, Rule};

/// Most groups within groups.
const MAX_DEPTH: usize = 100;
const ONCE: (u32, Option<u32>) = (1, Some(1));
const DEFINES: &str = "::=";

/// Reads the rules of a grammar.
pub(super) fn rules(text: &str) -> Result<Vec<Rule>, String> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    let mut rules = Vec::new();
    reader.skip_space();
    while !reader.rest().is_empty() {
        rules.push(reader.rule()?);
    }
    Ok(rules)
}

struct Reader<'a> {
    text: &'a str,
    /// The bytes that are read.
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Result<char, String> {
        let Some(next) = self.peek() else { return self.fail("it ends too early") };
        self.at += next.len_utf8();
        Ok(next)
    }

    fn take(&mut self, expected: &str) -> bool {
        let is_next = self.rest().starts_with(expected);
        if is_next {
            self.at += expected.len();
        }
        is_next
    }

    fn skip_space(&mut self) {
        loop {
            let rest = self.rest().trim_start();
            self.at = self.text.len() - rest.len();
            if !rest.starts_with('#') {
                return;
            }
            self.at += rest.find('\n').unwrap_or(rest.len());
        }
    }

    fn fail<T>(&self, reason: &str) -> Result<T, String> {
        let line = self.text[..self.at].matches('\n').count() + 1;
        Err(format!("line {line}: {reason}"))
    }

    fn rule(&mut self) -> Result<Rule, String> {
        let name = self.name();
        if name.is_empty() {
            return self.fail("expected the name of a rule");
        }
        self.skip_space();
        if !self.take(DEFINES) {
            return self.fail(&format!("expected `{DEFINES}` after `{name}`"));
        }
        self.skip_space();
        Ok(Rule { name: name.to_owned(), body: self.choice()? })
    }

    fn name(&mut self) -> &'a str {
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
        let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn choice(&mut self) -> Result<Choice, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail(&format!("more than {MAX_DEPTH} groups within groups"));
        }
        let mut sequences = vec![self.sequence()?];
        while self.take("|") {
            self.skip_space();
            sequences.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(Choice(sequences))
    }

    fn sequence(&mut self) -> Result<Vec<Item>, String> {
        let mut items = Vec::new();
        while let Some(atom) = self.atom()? {
            let times = self.times()?;
            self.skip_space();
            items.push(Item { atom, times });
        }
        Ok(items)
    }

    /// The next atom; `None` at the end of a sequence.
    fn atom(&mut self) -> Result<Option<Atom>, String> {
        let Some(first) = self.peek() else { return Ok(None) };
        match first {
            '|' | ')' => Ok(None),
            '"' => self.quoted('"').map(Atom::Text).map(Some),
            '[' => self.class().map(Atom::Class).map(Some),
            '.' => {
                self.at += 1;
                Ok(Some(Atom::Class(r"[\s\S]".to_owned())))
            }
            '(' => {
                self.at += 1;
                self.skip_space();
                let group = self.choice()?;
                if !self.take(")") {
                    return self.fail("expected `)`");
                }
                Ok(Some(Atom::Group(group)))
            }
            _ => self.reference(),
        }
    }

    /// A name, unless it is that of the next rule.
    fn reference(&mut self) -> Result<Option<Atom>, String> {
        let start = self.at;
        let name = self.name();
        if name.is_empty() {
            let found: String = self.rest().chars().take(1).collect();
            return self.fail(&format!("`{found}` is not expected here"));
        }
        let end = self.at;
        self.skip_space();
        let is_next_rule = self.rest().starts_with(DEFINES);
        self.at = if is_next_rule { start } else { end };
        Ok((!is_next_rule).then(|| Atom::Rule(name.to_owned())))
    }

    fn times(&mut self) -> Result<(u32, Option<u32>), String> {
        match self.peek() {
            Some('*') => self.after((0, None)),
            Some('+') => self.after((1, None)),
            Some('?') => self.after((0, Some(1))),
            Some('{') => {
                self.at += 1;
                self.range()
            }
            _ => Ok(ONCE),
        }
    }

    fn after(&mut self, times: (u32, Option<u32>)) -> Result<(u32, Option<u32>), String> {
        self.at += 1;
        Ok(times)
    }

    /// `{2}`, `{2,}` or `{2,3}`, after the brace.
    fn range(&mut self) -> Result<(u32, Option<u32>), String> {
        let Some((inside, _)) = self.rest().split_once('}') else { return self.fail("expected `}`") };
        let (least, most) = match inside.split_once(',') {
            None => (inside, inside),
            Some(bounds) => bounds,
        };
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let most = if most.trim().is_empty() { Some(None) } else { number(most).map(Some) };
        let (Some(least), Some(most)) = (number(least), most) else {
            return self.fail("a repetition must be `{2}`, `{2,}` or `{2,3}`");
        };
        if most.is_some_and(|most| most < least) {
            return self.fail("the end of a repetition must not be before its start");
        }
        self.at += inside.len() + 1;
        Ok((least, most))
    }

    fn quoted(&mut self, quote: char) -> Result<String, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next()? {
                '\n' => return self.fail("a text must end on its line"),
                next if next == quote => return Ok(text),
                '\\' => text.push(self.escaped()?),
                next => text.push(next),
            }
        }
    }

    /// `[a-z]` or `[^a-z]` as a regular expression.
    fn class(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut class = String::from(if self.take("^") { "[^" } else { "[" });
        let empty = class.len();
        while self.peek() != Some(']') {
            let first = self.member()?;
            class.push_str(&in_class(first));
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                let last = self.member()?;
                if last < first {
                    return self.fail("the end of a range must not be before its start");
                }
                class.push('-');
                class.push_str(&in_class(last));
            }
        }
        if class.len() == empty {
            return self.fail("a set of characters must not be empty");
        }
        self.at += 1;
        class.push(']');
        Ok(class)
    }

    fn member(&mut self) -> Result<char, String> {
        match self.next()? {
            '\\' => self.escaped(),
            next => Ok(next),
        }
    }

    /// The character of an escape, after the backslash.
    fn escaped(&mut self) -> Result<char, String> {
        match self.next()? {
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            'x' => self.code(2),
            'u' => self.code(4),
            'U' => self.code(8),
            other if other.is_ascii_punctuation() => Ok(other),
            other => self.fail(&format!("`\\{other}` is not a known escape")),
        }
    }

    fn code(&mut self, digits: usize) -> Result<char, String> {
        let code = self.rest().get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok());
        let Some(character) = code.and_then(char::from_u32) else {
            return self.fail(&format!("expected {digits} hexadecimal digits of a character"));
        };
        self.at += digits;
        Ok(character)
    }
}

/// A character inside the brackets of a regular expression.
fn in_class(character: char) -> String {
    if character.is_ascii_alphanumeric() {
        character.to_string()
    } else {
        format!("\\u{{{:x}}}", u32::from(character))
    }
}
