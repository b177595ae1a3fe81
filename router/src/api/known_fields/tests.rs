//! The table agrees with the types of the requests and with docs/parameters.md, and decides what is refused.

use serde_json::{Map, Value, json};
use utoipa::PartialSchema;

use super::body::Names;
use super::field::{Fate, Field, HasKnownFields, On};
use super::table::FIELDS;
use crate::api::openai::{ChatRequest, CompletionRequest};
use crate::base::error::Error;

fn check<T: HasKnownFields>(body: Value, strict: bool) -> Result<(), Error> {
    serde_json::from_value::<Names<T>>(body).unwrap().check("", strict)
}

/// The names of the fields that a type has.
fn names_of<T: PartialSchema>() -> Vec<String> {
    let schema = serde_json::to_value(T::schema()).unwrap();
    let mut names: Vec<String> = schema["properties"].as_object().unwrap().keys().cloned().collect();
    names.sort();
    names
}

fn names_that_work(route: On) -> Vec<String> {
    let works = |field: &&Field| field.on.includes(route) && matches!(field.fate, Fate::Works);
    let mut names: Vec<String> = FIELDS.iter().filter(works).map(|field| field.name.to_owned()).collect();
    names.sort();
    names
}

#[test]
fn the_fields_of_the_requests_are_those_that_work() {
    assert_eq!(names_that_work(On::Chat), names_of::<ChatRequest>());
    assert_eq!(names_that_work(On::Completions), names_of::<CompletionRequest>());
}

#[test]
fn a_name_has_one_row_for_each_route() {
    for (number, field) in FIELDS.iter().enumerate() {
        for other in &FIELDS[number + 1..] {
            let routes = [On::Chat, On::Completions];
            let is_twice = routes.iter().any(|&on| field.on.includes(on) && other.on.includes(on));
            assert!(field.name != other.name || !is_twice, "{}", field.name);
        }
    }
}

#[test]
fn the_values_that_ask_for_nothing_are_json() {
    for field in FIELDS {
        if let Fate::Refused(neutral) = field.fate {
            assert!(neutral.iter().all(|text| serde_json::from_str::<Value>(text).is_ok()), "{}", field.name);
        }
    }
}

#[test]
fn a_field_that_is_not_supported_is_refused_by_its_name() {
    for (name, value) in [
        ("use_beam_search", json!(true)),
        ("length_penalty", json!(0.5)),
        ("modalities", json!(["text", "audio"])),
        ("audio", json!({"voice": "alloy"})),
        ("functions", json!([{"name": "f"}])),
        ("function_call", json!("auto")),
        ("web_search_options", json!({"search_context_size": "low"})),
        ("mirostat", json!(2)),
        ("lora_path", json!("x")),
    ] {
        assert_eq!(check::<ChatRequest>(json!({name: value}), false), Err(Error::NotSupported(name)));
    }
    let embeds = json!({"prompt_embeds": "x"});
    assert_eq!(check::<CompletionRequest>(embeds, false), Err(Error::NotSupported("prompt_embeds")));
}

#[test]
fn a_value_that_asks_for_nothing_is_not_refused() {
    let neutral = json!({
        "use_beam_search": false, "length_penalty": 1, "modalities": ["text"], "functions": [], "function_call": null,
        "web_search_options": {}, "dry_multiplier": 0.0, "json_schema": {}, "bad_words": [],
    });
    assert_eq!(check::<ChatRequest>(neutral, true), Ok(()));
    assert_eq!(check::<CompletionRequest>(json!({"suffix": ""}), true), Ok(()));
}

#[test]
fn fields_that_do_not_change_the_reply_are_accepted() {
    let accepted = json!({
        "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "modalities": ["text"],
        "verbosity": "medium", "prediction": {"type": "content", "content": "x"}, "top_logprobs": 0,
    });
    assert_eq!(check::<ChatRequest>(accepted, true), Ok(()));
}

#[test]
fn every_known_field_may_be_null() {
    for (route, check) in [
        (On::Chat, check::<ChatRequest> as fn(Value, bool) -> _),
        (On::Completions, check::<CompletionRequest>),
    ] {
        let known = FIELDS.iter().filter(|field| field.on.includes(route));
        let nulls: Map<String, Value> = known.map(|field| (field.name.to_owned(), Value::Null)).collect();
        assert_eq!(check(nulls.into(), true), Ok(()));
    }
}

#[test]
fn only_unknown_names_are_ignored_unless_fields_are_strict() {
    let body = json!({"temprature": 0.1});
    assert_eq!(check::<ChatRequest>(body.clone(), false), Ok(()));
    let error = check::<ChatRequest>(body, true).unwrap_err();
    assert_eq!(error.param(), Some("temprature"));
    assert!(error.to_string().contains("`temprature` is not a known field (--strict-fields)"), "{error}");
    assert_eq!(
        check::<CompletionRequest>(json!({"messages": []}), true).unwrap_err().param(),
        Some("messages")
    );
}

#[test]
fn the_documentation_has_the_same_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/parameters.md");
    let documented = std::fs::read_to_string(path).unwrap_or_default();
    let rows: Vec<&str> = documented.lines().skip_while(|line| *line != HEAD).skip(2).collect();
    let rows: Vec<&str> = rows.into_iter().take_while(|line| line.starts_with('|')).collect();
    let expected: Vec<String> = FIELDS.iter().map(row).collect();
    assert!(rows == expected, "docs/parameters.md should have:\n{HEAD}\n{RULE}\n{}", expected.join("\n"));
}

const HEAD: &str = "| field | routes | of | | |";
const RULE: &str = "| --- | --- | --- | --- | --- |";

/// The row of a field in the documentation.
fn row(field: &Field) -> String {
    let routes = match field.on {
        On::Chat => "chat",
        On::Completions => "completions",
        On::Both => "both",
    };
    let fate = match field.fate {
        Fate::Works => "works".to_owned(),
        Fate::Accepted => "accepted, no effect".to_owned(),
        Fate::Refused([]) => "refused".to_owned(),
        Fate::Refused(neutral) => format!("refused unless `{}`", neutral.join("`, `")),
    };
    let cells = [&format!("`{}`", field.name), routes, field.of, &fate, field.note];
    format!("| {} |", cells.join(" | ")).replace("|  |", "| |")
}
