//! Turns a grammar of a text into a grammar of the same text as it is written inside a JSON string: a model writes the
//! input of a custom tool as a string in the arguments of a call. Literals and regular expressions are rewritten one by
//! one; the rules around them stay as they are.

mod common_terminals;
mod pattern;

use serde_json::Value;

use self::common_terminals::definition;
use self::pattern::{quoted_pattern, quoted_text};
use super::lark::{check_operators, is_in_name, token_len};
use super::parse::MAX_TEXT_BYTES;

/// The Lark grammar of a JSON string's inside whose text matches the regular expression.
pub(crate) fn quoted_regex(pattern: &str) -> Result<String, String> {
    check_len(pattern)?;
    Ok(format!("start: {}\n", as_terminal(&quoted_pattern(pattern, "")?)))
}

/// The Lark grammar of a JSON string's inside whose text matches this Lark grammar.
pub(crate) fn quoted_lark(text: &str) -> Result<String, String> {
    check_len(text)?;
    check_operators(text)?;
    let mut quoting = Quoting { rest: text, written: String::new() };
    while quoting.step()? {}
    Ok(quoting.written + "\n")
}

fn check_len(text: &str) -> Result<(), String> {
    match text.len() {
        0 => Err("it is empty".to_owned()),
        given if given > MAX_TEXT_BYTES => {
            Err(format!("it may have at most {MAX_TEXT_BYTES} bytes. Given: {given}"))
        }
        _ => Ok(()),
    }
}

/// A grammar that is rewritten token by token.
struct Quoting<'a> {
    rest: &'a str,
    written: String,
}

impl<'a> Quoting<'a> {
    /// Rewrites one token; false at the end.
    fn step(&mut self) -> Result<bool, String> {
        let Some(first) = self.rest.chars().next() else { return Ok(false) };
        let token = self.take(token_len(self.rest, first));
        match first {
            '"' => self.literal(token)?,
            '/' if !token.starts_with("//") => {
                let flags = self.take_name();
                let pattern = token.strip_prefix('/').and_then(|token| token.strip_suffix('/'));
                let pattern = pattern.ok_or("a regular expression has no end")?;
                self.written += &as_terminal(&quoted_pattern(pattern, flags)?);
            }
            '%' => self.import()?,
            '<' => return Err("special tokens (`<..>`) cannot be part of the input of a tool".to_owned()),
            '@' => return Err("references to other grammars (`@..`) are not supported".to_owned()),
            '~' if !self.rest.trim_start().starts_with(|c: char| c.is_ascii_digit()) => {
                return Err("the negation `~` is not supported in the input of a tool".to_owned());
            }
            _ => self.written += token,
        }
        Ok(true)
    }

    fn take(&mut self, len: usize) -> &'a str {
        let (token, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        token
    }

    fn take_name(&mut self) -> &'a str {
        self.take(self.rest.find(|c| !is_in_name(c)).unwrap_or(self.rest.len()))
    }

    /// A string, with its flag, or as the start of a range (`"a".."z"`).
    fn literal(&mut self, token: &str) -> Result<(), String> {
        let text = text_of(token)?;
        if let Some(after) = self.rest.trim_start().strip_prefix("..") {
            self.rest = after.trim_start();
            let last = self.take(token_len(self.rest, '"'));
            let [first, last] = [&text, &text_of(last)?].map(|end| escaped(end));
            self.written += &as_terminal(&quoted_pattern(&format!("[{first}-{last}]"), "")?);
        } else if self.rest.starts_with('i') {
            self.take_name();
            self.written += &as_terminal(&quoted_pattern(&escaped(&text), "i")?);
        } else {
            self.written += &as_literal(&text);
        }
        Ok(())
    }

    /// `%import common.NAME`, `%import common.NAME -> OTHER`, `%import common (NAME, OTHER)`: the definitions take the
    /// place of the statement. There are no other directives.
    fn import(&mut self) -> Result<(), String> {
        let line = self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
        let refusal = "of all directives only `%import common.NAME` is supported";
        let path = line.strip_prefix("import").map(str::trim).ok_or(refusal)?;
        let names = path.strip_prefix("common").ok_or(refusal)?.trim();
        let listed = names.strip_prefix('(').and_then(|names| names.strip_suffix(')'));
        let names: Vec<&str> = match listed {
            Some(names) => names.split(',').collect(),
            None => vec![names.strip_prefix('.').ok_or(refusal)?],
        };
        for entry in names {
            let (name, alias) = entry.split_once("->").unwrap_or((entry, entry));
            let pattern = definition(name.trim()).ok_or_else(|| {
                format!("`common` has no terminal {:?}", name.trim().chars().take(50).collect::<String>())
            })?;
            let terminal = as_terminal(&quoted_pattern(pattern, "")?);
            self.written += &format!("{}: {terminal}\n", alias.trim());
        }
        Ok(())
    }
}

/// The text of a string of Lark, which is JSON's with `\x41` beside it.
fn text_of(token: &str) -> Result<String, String> {
    let json = token.replace("\\\\", "\\u005c").replace("\\x", "\\u00");
    serde_json::from_str(&json).map_err(|_| "a string is not a string of JSON".to_owned())
}

fn escaped(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_punctuation() { format!("\\{c}") } else { c.to_string() }).collect()
}

fn as_literal(text: &str) -> String {
    Value::from(quoted_text(text)).to_string().replace('\u{7f}', "\\u007f")
}

fn as_terminal(pattern: &str) -> String {
    format!("/{}/", llguidance::regex_to_lark(pattern, ""))
}

#[cfg(test)]
mod tests;
