//! Writes EBNF in Lark. Lark has rules and terminals. A terminal is one regular expression, and llguidance takes the
//! longest text that matches it; so all that is regular becomes a terminal, as large as possible, and only rules that
//! contain themselves, and what refers to them, stay rules.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use super::parse;
use super::rules::{Atom, Choice, Item, Rule};

/// The rule that stands for the whole output.
const ROOT: &str = "root";

/// Most rules. To find the regular ones may take a pass for each.
const MAX_RULES: usize = 500;

/// Writes a grammar in Lark; the error is the reason for the client.
pub(in crate::grammar) fn to_lark(text: &str) -> Result<String, String> {
    let rules = parse::rules(text)?;
    if rules.len() > MAX_RULES {
        return Err(format!("it may have at most {MAX_RULES} rules. Given: {}", rules.len()));
    }
    let mut by_name = BTreeMap::new();
    for rule in &rules {
        if by_name.insert(rule.name.as_str(), &rule.body).is_some() {
            return Err(format!("the rule `{}` is there twice", rule.name));
        }
    }
    if !by_name.contains_key(ROOT) {
        return Err(format!("it has no rule `{ROOT}`"));
    }
    for rule in &rules {
        if let Some(name) = names_in(&rule.body).into_iter().find(|name| !by_name.contains_key(name)) {
            return Err(format!("there is no rule `{name}`"));
        }
    }
    Ok(Writer::new(&rules).write(&rules))
}

fn names_in(choice: &Choice) -> Vec<&str> {
    choice.0.iter().flatten().flat_map(names_of).collect()
}

fn names_of(item: &Item) -> Vec<&str> {
    match &item.atom {
        Atom::Rule(name) => vec![name],
        Atom::Group(group) => names_in(group),
        Atom::Text(_) | Atom::Class(_) => Vec::new(),
    }
}

struct Writer<'a> {
    /// The rules that are regular: what they refer to is regular, and none contains itself.
    regular: HashSet<&'a str>,
    /// The name in Lark of each rule.
    names: BTreeMap<&'a str, String>,
    lark: String,
    /// Number of terminals that were made of parts of rules.
    num_parts: usize,
}

impl<'a> Writer<'a> {
    fn new(rules: &'a [Rule]) -> Self {
        let regular = regular(rules);
        let name = |(number, rule): (usize, &'a Rule)| {
            let letters = rule.name.replace(|c: char| !c.is_ascii_alphanumeric(), "_").to_ascii_lowercase();
            let name = format!("r{number}_{letters}");
            let is_regular = regular.contains(rule.name.as_str());
            (rule.name.as_str(), if is_regular { name.to_ascii_uppercase() } else { name })
        };
        let names = rules.iter().enumerate().map(name).collect();
        Self { regular, names, lark: String::new(), num_parts: 0 }
    }

    fn write(mut self, rules: &'a [Rule]) -> String {
        self.define("start", &self.names[ROOT].clone());
        for rule in rules {
            let is_regular = self.regular.contains(rule.name.as_str());
            let body = if is_regular { self.terminal(&rule.body) } else { self.rule(&rule.body) };
            self.define(&self.names[rule.name.as_str()].clone(), &body);
        }
        self.lark
    }

    fn define(&mut self, name: &str, body: &str) {
        writeln!(self.lark, "{name}: {body}").expect("a string can be written to");
    }

    fn is_regular(&self, item: &Item) -> bool {
        names_of(item).iter().all(|name| self.regular.contains(name))
    }

    fn terminal(&self, choice: &Choice) -> String {
        let sequences = choice.0.iter().map(|items| self.terminal_sequence(items));
        sequences.collect::<Vec<_>>().join(" | ")
    }

    fn terminal_sequence(&self, items: &[Item]) -> String {
        in_sequence(items.iter().map(|item| {
            let atom = match &item.atom {
                Atom::Text(text) => quoted(text),
                Atom::Class(class) => format!("/{class}/"),
                Atom::Rule(name) => self.names[name.as_str()].clone(),
                Atom::Group(group) => format!("({})", self.terminal(group)),
            };
            atom + &times(item.times)
        }))
    }

    fn rule(&mut self, choice: &Choice) -> String {
        let sequences: Vec<String> = choice.0.iter().map(|items| self.rule_sequence(items)).collect();
        sequences.join(" | ")
    }

    /// Neighbours that are regular become one terminal.
    fn rule_sequence(&mut self, items: &[Item]) -> String {
        let parts = items.chunk_by(|item, next| self.is_regular(item) && self.is_regular(next));
        let parts: Vec<&[Item]> = parts.collect();
        let written = parts.into_iter().map(|part| match part {
            [item] if !self.is_regular(item) => self.rule_item(item),
            regular => self.part(regular),
        });
        in_sequence(written)
    }

    fn rule_item(&mut self, item: &Item) -> String {
        let atom = match &item.atom {
            Atom::Group(group) => format!("({})", self.rule(group)),
            Atom::Rule(name) => self.names[name.as_str()].clone(),
            Atom::Text(_) | Atom::Class(_) => String::new(), // regular, always
        };
        atom + &times(item.times)
    }

    fn part(&mut self, items: &[Item]) -> String {
        let name = format!("PART_{}", self.num_parts);
        self.num_parts += 1;
        let body = self.terminal_sequence(items);
        self.define(&name, &body);
        name
    }
}

/// The rules that are regular, found from those that refer to none.
fn regular(rules: &[Rule]) -> HashSet<&str> {
    let mut regular = HashSet::new();
    loop {
        let is_found = |rule: &&Rule| {
            !regular.contains(rule.name.as_str())
                && names_in(&rule.body).iter().all(|name| regular.contains(name))
        };
        let found: Vec<&str> = rules.iter().filter(is_found).map(|rule| rule.name.as_str()).collect();
        if found.is_empty() {
            return regular;
        }
        regular.extend(found);
    }
}

fn in_sequence(items: impl Iterator<Item = String>) -> String {
    let written = items.collect::<Vec<_>>().join(" ");
    if written.is_empty() { "\"\"".to_owned() } else { written }
}

fn times(times: (u32, Option<u32>)) -> String {
    match times {
        (1, Some(1)) => String::new(),
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, Some(most)) => format!("{{{least},{most}}}"),
        (least, None) => format!("{{{least},}}"),
    }
}

/// A text as Lark quotes it. Signs that Lark gives a meaning are written by their numbers.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for unit in text.encode_utf16() {
        match u8::try_from(unit) {
            Ok(byte) if byte.is_ascii_alphanumeric() || byte == b' ' => quoted.push(byte.into()),
            _ => write!(quoted, "\\u{unit:04x}").expect("a string can be written to"),
        }
    }
    quoted + "\""
}
