//! Finds where a text that arrives byte by byte first matches one of several regular expressions, and from where on what
//! came may still become a match. All expressions run as one automaton, of limited size: the time for a byte is bounded.

use std::sync::Arc;

use regex_automata::nfa::thompson::{Compiler, Config, NFA, State, WhichCaptures};
use regex_automata::util::look::Look;
use regex_automata::util::primitives::{PatternID, StateID};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, Look as HirLook};

/// Most states of the automaton. Each byte of the text may visit all of them.
const MAX_STATES: usize = 4_000;
/// Most bytes that the automaton may take while it is built; far more than so many states have.
const MAX_BYTES: usize = 1 << 20;
const MAX_NESTING: u32 = 100;

/// Regular expressions that end a text. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StopRegexes {
    patterns: Arc<[String]>,
    nfa: NFA,
}

impl PartialEq for StopRegexes {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl StopRegexes {
    /// Compiles the expressions; the error is the reason for the client.
    pub fn new(patterns: &[String]) -> Result<Self, String> {
        let parsed: Vec<Hir> = patterns.iter().map(|pattern| parse(pattern)).collect::<Result<_, _>>()?;
        let config =
            Config::new().nfa_size_limit(Some(MAX_BYTES)).which_captures(WhichCaptures::None).shrink(false);
        let built = Compiler::new().configure(config).build_many_from_hir(&parsed);
        match built {
            Ok(nfa) if nfa.states().len() <= MAX_STATES => Ok(Self { patterns: patterns.into(), nfa }),
            Ok(nfa) => {
                Err(format!("they are too large: {} states, at most {MAX_STATES}", nfa.states().len()))
            }
            Err(_) => Err(format!("they are too large: at most {MAX_STATES} states")),
        }
    }
}

/// Reads one expression, and refuses what cannot be decided while the text still grows.
fn parse(pattern: &str) -> Result<Hir, String> {
    let given: String = pattern.chars().take(50).collect();
    let hir = ParserBuilder::new().nest_limit(MAX_NESTING).build().parse(pattern).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        format!("{given:?} is not supported: {reason}")
    })?;
    let looks = hir.properties().look_set();
    if looks.iter().any(|look| !matches!(look, HirLook::Start | HirLook::StartLF)) {
        return Err(format!("{given:?} is not supported: of `$`, `\\b` and the like only `^` works"));
    }
    if hir.properties().minimum_len() == Some(0) {
        return Err(format!("{given:?} matches the empty text"));
    }
    Ok(hir)
}

/// A match that ends with the last byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegexMatch {
    /// How many bytes it has.
    pub len: usize,
    /// The expression.
    pub pattern: String,
}

/// Reads a text.
#[derive(Debug, Clone)]
pub(super) struct RegexWatch {
    regexes: StopRegexes,
    /// Where matches may be under way; those that began first come first.
    threads: Vec<Thread>,
    visited: Visited,
    position: usize,
    last_byte: Option<u8>,
}

/// A state of the automaton, and where the text that led to it begins: of several such places the first.
#[derive(Debug, Clone, Copy)]
struct Thread {
    state: StateID,
    start: usize,
}

impl RegexWatch {
    pub fn new(regexes: StopRegexes) -> Self {
        let visited = Visited { rounds: vec![0; regexes.nfa.states().len()], round: 0 };
        Self { regexes, threads: Vec::new(), visited, position: 0, last_byte: None }
    }

    /// Reads a byte; returns the match that it completes. Of several, the longest.
    pub fn advance(&mut self, byte: u8) -> Option<RegexMatch> {
        let nfa = self.regexes.nfa.clone();
        let mut current = std::mem::take(&mut self.threads);
        self.visited.begin_round();
        for thread in &current {
            self.visited.visit(thread.state);
        }
        self.follow(&nfa, nfa.start_anchored(), self.position, &mut current);
        self.position += 1;
        self.last_byte = Some(byte);
        self.visited.begin_round();
        let (mut next, mut found) = (Vec::new(), None);
        for Thread { state, start } in current {
            let Some(state) = target(nfa.state(state), byte) else { continue };
            let pattern = self.follow(&nfa, state, start, &mut next);
            found = found.or(pattern.map(|pattern| (start, pattern)));
        }
        self.threads = next;
        found.map(|(start, pattern)| RegexMatch {
            len: self.position - start,
            pattern: self.regexes.patterns[pattern.as_usize()].clone(),
        })
    }

    /// How many of the last bytes may be the beginning of a match.
    pub fn num_undecided(&self) -> usize {
        self.threads.first().map_or(0, |thread| self.position - thread.start)
    }

    /// Adds the states that read a byte and can be reached from `state` without one; returns the expression that is
    /// complete there, if one is.
    fn follow(
        &mut self,
        nfa: &NFA,
        state: StateID,
        start: usize,
        out: &mut Vec<Thread>,
    ) -> Option<PatternID> {
        let (mut open, mut found) = (vec![state], None);
        while let Some(state) = open.pop() {
            if !self.visited.visit(state) {
                continue;
            }
            match nfa.state(state) {
                State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) => {
                    out.push(Thread { state, start })
                }
                State::Union { alternates } => open.extend(alternates.iter()),
                State::BinaryUnion { alt1, alt2 } => open.extend([alt1, alt2]),
                State::Capture { next, .. } => open.push(*next),
                State::Look { next, look } if self.is_behind(*look) => open.push(*next),
                State::Look { .. } | State::Fail => {}
                State::Match { pattern_id } => found = found.or(Some(*pattern_id)),
            }
        }
        found
    }

    /// Whether `^` holds here: at the start of the text or, with `(?m)`, of a line.
    fn is_behind(&self, look: Look) -> bool {
        self.position == 0 || (look == Look::StartLF && self.last_byte == Some(b'\n'))
    }
}

/// The state behind a byte.
fn target(state: &State, byte: u8) -> Option<StateID> {
    match state {
        State::ByteRange { trans } => trans.matches_byte(byte).then_some(trans.next),
        State::Sparse(transitions) => transitions.matches_byte(byte),
        State::Dense(transitions) => transitions.matches_byte(byte),
        _ => None,
    }
}

/// Which states were visited in this round.
#[derive(Debug, Clone)]
struct Visited {
    /// For each state, the round of its last visit.
    rounds: Vec<u64>,
    round: u64,
}

impl Visited {
    fn begin_round(&mut self) {
        self.round += 1;
    }

    /// Whether this is the first visit in this round.
    fn visit(&mut self, state: StateID) -> bool {
        std::mem::replace(&mut self.rounds[state.as_usize()], self.round) != self.round
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The match that is complete first, with its place in the text.
    fn first_match(patterns: &[&str], text: &str) -> Option<(usize, usize, String)> {
        let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        let mut watch = RegexWatch::new(StopRegexes::new(&patterns).unwrap());
        text.bytes().enumerate().find_map(|(at, byte)| {
            watch.advance(byte).map(|found| (at + 1 - found.len, at + 1, found.pattern))
        })
    }

    fn reason(pattern: &str) -> String {
        StopRegexes::new(&[pattern.to_owned()]).unwrap_err()
    }

    #[test]
    fn the_first_match_to_be_complete_is_found_from_its_first_byte_on() {
        for (patterns, text, expected) in [
            (&["[0-9]{3}"][..], "a12b3456", Some((4, 7, 0))),
            (&["a+b"], "caaab", Some((1, 5, 0))),
            (&["x.*z", "y"], "xayz", Some((2, 3, 1))),
            (&["bc", "[a-c]{3}"], "abcabc", Some((0, 3, 1))),
            (&["é|ü"], "naïvé", Some((5, 7, 0))),
            (&["(?i)stop"], "do sToP", Some((3, 7, 0))),
            (&["^a"], "ba", None),
            (&["(?m)^a"], "b\na", Some((2, 3, 0))),
            (&["\\d+\\."], "12 7.", Some((3, 5, 0))),
            (&["q"], "abc", None),
        ] {
            let expected = expected.map(|(start, end, number)| (start, end, patterns[number].to_owned()));
            assert_eq!(first_match(patterns, text), expected, "{patterns:?} {text}");
        }
    }

    #[test]
    fn text_is_undecided_from_where_a_match_may_have_begun() {
        let mut watch = RegexWatch::new(StopRegexes::new(&["[a-z]+!".to_owned()]).unwrap());
        let undecided: Vec<usize> = "ab cd"
            .bytes()
            .map(|byte| {
                assert_eq!(watch.advance(byte), None);
                watch.num_undecided()
            })
            .collect();
        assert_eq!(undecided, [1, 2, 0, 1, 2]);
    }

    #[test]
    fn what_cannot_be_decided_as_the_text_grows_is_refused() {
        for (pattern, expected) in [
            ("a$", "only `^` works"),
            ("\\ba", "only `^` works"),
            ("a*", "matches the empty text"),
            ("(?=a)b", "look-around"),
            ("(a", "unclosed group"),
            ("(a)\\1", "backreferences"),
            ("(?-u)\\xff", "UTF-8"),
            ("a{4000}b{4000}", "too large"),
            ("((a{1,500}){1,500}){1,500}", "too large"),
            (&format!("{}a{}", "(".repeat(200), ")".repeat(200)), "nest"),
        ] {
            assert!(reason(pattern).contains(expected), "{pattern}: {}", reason(pattern));
        }
    }
}
