//! The public JSON-Schema test suite, draft 2020-12 with its optional parts: every schema is obeyed, or refused with the
//! keyword that is not supported. What differs is listed in `deviations`, case by case. `make schema-suite` gets it.

mod deviations;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use penstock_scheduler::{Grammar, GrammarKind};
use serde::Deserialize;
use serde_json::Value;

use super::compiler::Compiler;
use super::parse::with_settings;
use crate::text::detokenizer::Vocabulary;
use crate::text::tokenizer::fixtures::byte_level;
use deviations::{ALLOWED, MISSING};

#[derive(Deserialize)]
struct Group {
    description: String,
    schema: Value,
    tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    description: String,
    data: Value,
    valid: bool,
}

/// Counts of the results for all schemas and values.
#[derive(Default)]
struct Tally {
    compiled: usize,
    refused: usize,
    obeyed: usize,
    /// Refusals that name no keyword of their schema.
    unexplained: Vec<String>,
    /// Values that should not be possible, but are.
    allowed: BTreeSet<String>,
    /// Values that should be possible, but are not.
    missing: BTreeSet<String>,
}

impl Tally {
    fn add(&mut self, file: &str, group: &Group, compiler: &Compiler) {
        let text = with_settings(group.schema.clone()).to_string();
        let grammar = Grammar { kind: GrammarKind::JsonSchema, text };
        let place = format!("{file}: {}", group.description);
        match compiler.check(&grammar) {
            Err(reason) => self.refuse(&place, &group.schema, &reason),
            Ok(()) => {
                self.compiled += 1;
                for case in &group.tests {
                    let place = format!("{place}: {}", case.description);
                    self.value(place, case.valid, compiler.allows(&grammar, &case.data.to_string()));
                }
            }
        }
    }

    fn refuse(&mut self, place: &str, schema: &Value, reason: &str) {
        self.refused += 1;
        // The keyword may be one of the schema that is referred to: the standard's own.
        let is_clear =
            ["Unsatisfiable schema", "Unimplemented keys"].iter().any(|known| reason.starts_with(known));
        if !is_clear && !keywords(schema).iter().any(|keyword| reason.contains(keyword.as_str())) {
            self.unexplained.push(format!("{place}: {reason}"));
        }
    }

    fn value(&mut self, place: String, is_valid: bool, is_allowed: bool) {
        match (is_valid, is_allowed) {
            (true, true) | (false, false) => self.obeyed += 1,
            (true, false) => drop(self.missing.insert(place)),
            (false, true) => drop(self.allowed.insert(place)),
        }
    }
}

/// Every name in a schema, at any depth.
fn keywords(schema: &Value) -> BTreeSet<String> {
    match schema {
        Value::Object(fields) => fields.keys().cloned().chain(fields.values().flat_map(keywords)).collect(),
        Value::Array(items) => items.iter().flat_map(keywords).collect(),
        _ => BTreeSet::new(),
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn run(root: &Path) -> Tally {
    let tokenizer = byte_level();
    let vocab_size = tokenizer.get_vocab_size(true) as u32;
    let eos = tokenizer.token_to_id("</s>").unwrap();
    let compiler = Compiler::new(&Vocabulary::new(tokenizer), vocab_size, &[eos]).unwrap();
    let mut tally = Tally::default();
    for path in files(root) {
        let groups: Vec<Group> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let file = path.strip_prefix(root).unwrap().with_extension("");
        for group in &groups {
            tally.add(&file.display().to_string(), group, &compiler);
        }
    }
    tally
}

fn listed(deviations: &[(&str, &[&str])]) -> BTreeSet<String> {
    deviations.iter().flat_map(|(_, places)| places.iter().map(|&place| place.to_owned())).collect()
}

#[test]
fn every_schema_is_obeyed_or_refused_with_its_keyword() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/json_schema_suite/draft2020-12");
    if !root.exists() {
        // No reason to fail on a machine without a registry, but one where nobody looks.
        assert!(std::env::var_os("CI").is_none(), "no JSON-Schema test suite");
        eprintln!("skipped: no JSON-Schema test suite; `make schema-suite` gets it");
        return;
    }
    let tally = run(&root);
    assert_eq!(tally.unexplained, [""; 0]);
    assert_eq!(tally.allowed, listed(&ALLOWED));
    assert_eq!(tally.missing, listed(&MISSING));
    // So that a suite which is not there, or a compiler that refuses all, is no success.
    assert_eq!((tally.compiled, tally.refused, tally.obeyed), (205, 233, 944));
}
