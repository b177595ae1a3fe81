//! Looks at the tokens of a Lark grammar before it is compiled: whether it has directives, and how many texts `&` and
//! `~` join. As with the patterns of a schema, to find out whether any text matches all of them costs several times as
//! much for each further one.

use std::collections::HashMap;
use std::iter;

use super::limits::MAX_JOINED;

/// Most levels of terminals within terminals.
const MAX_DEPTH: usize = 100;

/// The right-hand side of a rule or a terminal.
#[derive(Debug, Default)]
struct Definition<'a> {
    /// Number of `&` and `~` in it.
    operators: usize,
    /// Names that it refers to.
    names: Vec<&'a str>,
}

/// The size of a definition, with all that it refers to.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// Operators that act on one text: a definition with an operator adds those of all names that it refers to.
    joined: usize,
    /// Levels of terminals below it.
    height: usize,
}

/// Refuses a grammar in which a definition joins too much; the error names it.
pub(super) fn check_operators(text: &str) -> Result<(), String> {
    let mut measure = Measure { definitions: definitions(text), sizes: HashMap::new() };
    let mut names: Vec<&str> = measure.definitions.keys().copied().collect();
    names.sort_unstable();
    names.into_iter().try_for_each(|name| measure.visit(name, 0).map(drop))
}

/// Whether a `%` stands where a directive may: outside of texts, regular expressions, special tokens and comments.
pub(super) fn has_directive(text: &str) -> bool {
    tokens(text).any(|(token, _)| token == "%")
}

struct Measure<'a> {
    definitions: HashMap<&'a str, Definition<'a>>,
    /// Sizes that are known. A definition counts as empty while it is measured: only rules may contain themselves, and
    /// operators do not join rules.
    sizes: HashMap<&'a str, Size>,
}

impl<'a> Measure<'a> {
    fn visit(&mut self, name: &'a str, depth: usize) -> Result<Size, String> {
        check_depth(depth)?;
        if let Some(known) = self.sizes.get(name) {
            return Ok(*known);
        }
        let Some(Definition { operators, names }) = self.definitions.get(name) else {
            return Ok(Size::default());
        };
        let (operators, names) = (*operators, names.clone());
        self.sizes.insert(name, Size::default());
        let mut size = Size { joined: operators, height: 0 };
        for name in names.into_iter().filter(|name| is_terminal(name)) {
            let inner = self.visit(name, depth + 1)?;
            size.joined =
                if operators > 0 { size.joined + inner.joined } else { size.joined.max(inner.joined) };
            size.height = size.height.max(inner.height + 1);
        }
        check_depth(size.height)?;
        if size.joined > MAX_JOINED {
            let given = size.joined;
            return Err(format!(
                "`{name}` may join at most {MAX_JOINED} texts by `&` and `~`. Given: {given}"
            ));
        }
        self.sizes.insert(name, size);
        Ok(size)
    }
}

fn check_depth(depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("its terminals are nested more than {MAX_DEPTH} deep"));
    }
    Ok(())
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase())
}

/// Definitions by name: all that follows a name at the start of a line, up to the next such name.
fn definitions(text: &str) -> HashMap<&str, Definition<'_>> {
    let mut definitions: HashMap<&str, Definition<'_>> = HashMap::new();
    let (mut current, mut at_line_start) = ("", true);
    for (token, after) in tokens(text) {
        match token.chars().next().unwrap_or_default() {
            '\n' => at_line_start = true,
            c if c.is_whitespace() || "!?".contains(c) => {}
            c if is_in_name(c) && at_line_start => (current, at_line_start) = (token, false),
            c if is_in_name(c) => definitions.entry(current).or_default().names.push(token),
            '&' => definitions.entry(current).or_default().operators += 1,
            '~' if !is_repetition(after) => definitions.entry(current).or_default().operators += 1,
            _ => at_line_start = false,
        }
    }
    definitions
}

/// The tokens, each with what is behind it.
fn tokens(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    iter::from_fn(move || {
        let (token, after) = rest.split_at(token_len(rest, rest.chars().next()?));
        rest = after;
        Some((token, after))
    })
}

/// Length of the first token. Strings, regular expressions, comments and special tokens are one token each, so that no
/// operator is found in them.
pub(super) fn token_len(rest: &str, first: char) -> usize {
    let until_end_of_line = || rest.find('\n').unwrap_or(rest.len());
    match first {
        '"' => quoted_len(rest, '"'),
        '#' => until_end_of_line(),
        '/' if rest.starts_with("//") => until_end_of_line(),
        '/' => quoted_len(rest, '/'),
        '<' => rest.find(|c: char| c == '>' || c.is_whitespace()).unwrap_or(rest.len()),
        c if is_in_name(c) => rest.find(|c| !is_in_name(c)).unwrap_or(rest.len()),
        c => c.len_utf8(),
    }
}

fn quoted_len(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    let end = rest[1..].find(|c| {
        let is_end = c == quote && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    end.map_or(rest.len(), |end| end + 2)
}

pub(super) fn is_in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// `A ~ 3`, `A ~ 3..5`.
fn is_repetition(after: &str) -> bool {
    after.trim_start_matches([' ', '\t']).starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        check_operators(text).unwrap_err()
    }

    fn joined(count: usize) -> String {
        (0..=count).map(|number| format!("/a.{{{number}}}b/")).collect::<Vec<_>>().join(" & ")
    }

    #[test]
    fn at_most_eight_operators_are_joined() {
        assert_eq!(check_operators(&format!("start: A\nA: {}", joined(8))), Ok(()));
        let reason = refused(&format!("start: A\nA: {}", joined(9)));
        assert_eq!(reason, "`A` may join at most 8 texts by `&` and `~`. Given: 9");
        assert!(refused(&format!("start: {}\"b\"", "~\"a\" ".repeat(9))).contains("`start`"));
        assert!(refused(&format!("start: A\nA: /x/\n  | {}", joined(9))).contains("`A`"));
    }

    #[test]
    fn operators_of_inner_terminals_count_where_they_are_joined() {
        let two = format!("A: {}\nB: {}\n", joined(4), joined(4));
        assert_eq!(check_operators(&format!("start: C\n{two}C: A | B")), Ok(()));
        assert_eq!(check_operators(&format!("start: A | B\n{two}")), Ok(()));
        assert!(refused(&format!("start: C\n{two}C: A & B")).ends_with("Given: 9"));
        assert!(
            refused(&format!("start: C\n{two}C: D & /x/\nD: A\n  | (E)\nE: B & A")).ends_with("Given: 9")
        );
        let chain: String = (0..200).map(|number| format!("A{number}: A{}\n", number + 1)).collect();
        assert!(refused(&format!("start: A0\n{chain}A200: \"x\"")).contains("nested more than 100 deep"));
    }

    #[test]
    fn only_a_percent_sign_outside_of_texts_is_a_directive() {
        for text in [
            r#"start: "100%""#,
            r#"start: "\"%json {}""#,
            r"start: /%[0-9a-f]{2}|\/%/i",
            "start: \"a\" // %ignore\n# %import x",
            "start: <|%|>",
        ] {
            assert!(!has_directive(text), "{text}");
        }
        for text in [
            "start: %json {}",
            r#"start: "%" %json {}"#,
            "start: /a/ %regex {}",
            "start: A // %\n%ignore A",
            r#"start: "\\" %json {}"#,
            "start: <|a|> %lark { }",
            "%llguidance {}\nstart: \"a\"",
        ] {
            assert!(has_directive(text), "{text}");
        }
    }

    #[test]
    fn what_is_not_an_operator_does_not_count() {
        let many = "&~".repeat(20);
        for text in [
            format!("start: \"{many}\""),
            format!("start: \"\\\"{many}\""),
            format!("start: /{many}\\/{many}/i"),
            format!("start: \"a\" // {many}\n# {many}"),
            format!("start: <|{many}|>"),
            format!("start: {}", "\"a\"~3 \"b\" ~ 1..2 ".repeat(20)),
        ] {
            assert_eq!(check_operators(&text), Ok(()), "{text}");
        }
    }

    #[test]
    fn quotes_in_other_tokens_hide_nothing() {
        for text in ["<\"> ", "\"\\\\\" ", "/\\\\/ ", "/\"/ ", "\"/\" ", "a-b::_ "] {
            let hidden = format!("start: {text}{}", joined(9));
            assert!(check_operators(&hidden).is_err(), "{hidden}");
        }
    }
}
