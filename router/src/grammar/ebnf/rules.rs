//! The parts of a grammar in EBNF.

/// A rule and what it stands for.
#[derive(Debug, PartialEq)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) body: Choice,
}

/// One of several sequences.
#[derive(Debug, PartialEq)]
pub(super) struct Choice(pub(super) Vec<Vec<Item>>);

/// A part of a sequence, and how often it may come.
#[derive(Debug, PartialEq)]
pub(super) struct Item {
    pub(super) atom: Atom,
    /// The fewest and the most times; `None` is any number of times.
    pub(super) times: (u32, Option<u32>),
}

#[derive(Debug, PartialEq)]
pub(super) enum Atom {
    /// A text as it is.
    Text(String),
    /// One character of a set, as a regular expression.
    Class(String),
    /// A reference to another rule, by its name.
    Rule(String),
    Group(Choice),
}
