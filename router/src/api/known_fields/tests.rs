//! The tables agree with the types of the requests and with docs/parameters.md, and decide what is refused.

use serde::de::DeserializeSeed;
use serde_json::{Map, Value, json};
use utoipa::PartialSchema;

use super::bodies::{BODIES, BodyFields};
use super::field::{Fate, Field, HasKnownFields, On};
use super::names::Names;
use super::table::FIELDS;
use crate::api::adapters::{LoadAdapterRequest, UnloadAdapterRequest};
use crate::api::anthropic::MessagesRequest;
use crate::api::clouds::vertex::VertexRequest;
use crate::api::condition::tensors::UpdateWeightsFromDistributed;
use crate::api::condition::trainer::{DestroyWeightsUpdateGroup, InitWeightsUpdateGroup};
use crate::api::condition::update::UpdateWeights;
use crate::api::kserve::TextRequest;
use crate::api::kserve::infer::{InferRequest, InputTensor, OutputName};
use crate::api::kserve::request::TextParameters;
use crate::api::llamacpp::InfillRequest;
use crate::api::ollama;
use crate::api::openai::{ChatRequest, CompletionRequest};
use crate::api::responses::ResponsesRequest;
use crate::api::responses::compact::CompactRequest;
use crate::api::tgi::{GenerateParameters, GenerateRequest};
use crate::api::tokenize::{DetokenizeRequest, TokenizePrompt};
use crate::base::error::Error;

fn check<T: HasKnownFields>(body: Value, strict: bool) -> Result<(), Error> {
    check_on(T::ON, body, strict)
}

fn check_on(on: On, body: Value, strict: bool) -> Result<(), Error> {
    Names::of(on).deserialize(body).unwrap().check("", strict)
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
fn the_fields_of_other_bodies_are_those_of_their_types() {
    for (on, expected) in [
        (On::Generate, names_of::<GenerateRequest>()),
        (On::GenerateParameters, names_of::<GenerateParameters>()),
        (On::Vertex, names_of::<VertexRequest>()),
        (On::TokenizePrompt, names_of::<TokenizePrompt>()),
        (On::TokenizeChat, vec!["add_special_tokens".to_owned(), "return_token_strs".to_owned()]),
        (On::Detokenize, names_of::<DetokenizeRequest>()),
        (On::LoadAdapter, names_of::<LoadAdapterRequest>()),
        (On::UpdateWeights, names_of::<UpdateWeights>()),
        (On::InitWeightsUpdateGroup, names_of::<InitWeightsUpdateGroup>()),
        (On::UpdateWeightsFromDistributed, names_of::<UpdateWeightsFromDistributed>()),
        (On::DestroyWeightsUpdateGroup, names_of::<DestroyWeightsUpdateGroup>()),
        (On::UnloadAdapter, names_of::<UnloadAdapterRequest>()),
        (On::Infill, names_of::<InfillRequest>()),
        (On::Responses, names_of::<ResponsesRequest>()),
        (On::ResponsesCompact, names_of::<CompactRequest>()),
        (On::Messages, names_of::<MessagesRequest>()),
        (On::OllamaChat, names_of::<ollama::ChatRequest>()),
        (On::OllamaGenerate, names_of::<ollama::GenerateRequest>()),
        (On::OllamaOptions, names_of::<ollama::options::Options>()),
        (On::OllamaShow, names_of::<ollama::models::ShowRequest>()),
        (On::Kserve, names_of::<TextRequest>()),
        (On::KserveParameters, names_of::<TextParameters>()),
        (On::Infer, names_of::<InferRequest>()),
        (On::InferInput, names_of::<InputTensor>()),
        (On::InferOutput, names_of::<OutputName>()),
    ] {
        let body = BODIES.iter().find(|body| body.on == on).unwrap();
        assert_eq!(works(body), expected, "{on:?}");
        assert!(body.accepted.iter().all(|name| !expected.contains(&(*name).to_owned())), "{on:?}");
        assert!(body.nested.iter().all(|(name, _)| expected.contains(&(*name).to_owned())), "{on:?}");
        assert!(body.refused.iter().all(|(name, _)| !body.has(name)), "{on:?}");
    }
    assert_eq!(BODIES.len(), 25);
}

/// The names that a body reads, in order.
fn works(body: &BodyFields) -> Vec<String> {
    let mut names: Vec<String> =
        body.works.iter().copied().flatten().map(|name| (*name).to_owned()).collect();
    names.sort();
    names
}

#[test]
fn an_unknown_name_inside_an_object_or_a_list_has_its_path() {
    for (on, body, path) in [
        (On::Generate, json!({"inputs": "a", "parameters": {"seed": 1, "tempo": 2}}), "parameters.tempo"),
        (On::Kserve, json!({"parameters": {"topp": 2}}), "parameters.topp"),
        (On::OllamaChat, json!({"options": {"num_ctx": 9, "mirostatt": 2}}), "options.mirostatt"),
        (On::Infer, json!({"inputs": [{"name": "a"}, {"dattatype": "BYTES"}]}), "inputs[1].dattatype"),
        (On::Infer, json!({"parameters": null, "outputs": [{"x": 1}]}), "outputs[0].x"),
        (On::TokenizeChat, json!({"messages": [], "return_token_strs": true, "n_ctx": 1}), "n_ctx"),
    ] {
        assert_eq!(check_on(on, body.clone(), false), Ok(()), "{path}");
        assert_eq!(check_on(on, body, true).unwrap_err().param(), Some(path));
    }
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
        ("web_search_options", json!({"search_context_size": "low"})),
        ("mirostat", json!(2)),
    ] {
        assert_eq!(check::<ChatRequest>(json!({name: value}), false), Err(Error::NotSupported(name)));
    }
    let embeds = json!({"prompt_embeds": "x"});
    assert_eq!(check::<CompletionRequest>(embeds, false), Err(Error::NotSupported("prompt_embeds")));
}

#[test]
fn a_field_that_another_does_the_work_of_is_refused_with_that_one() {
    for (name, value, message) in [
        ("n_predict", json!(5), "`n_predict` is not supported yet: send `max_tokens`"),
        ("functions", json!([{"name": "f"}]), "`functions` is not supported yet: send `tools`"),
        (
            "lora_path",
            json!("x"),
            "`lora_path` is not supported yet: send the name of the adapter as `model`",
        ),
    ] {
        let error = check::<ChatRequest>(json!({name: value}), false).unwrap_err();
        assert_eq!(error.param(), Some(name));
        assert_eq!(error.to_string(), format!("Input validation error: {message}"));
    }
    let inside = Names::of(On::Chat).deserialize(json!({"n_predict": 5})).unwrap();
    let error = inside.check("instances[0]", false).unwrap_err();
    assert_eq!(error.param(), Some("instances[0].n_predict"));
    assert!(error.to_string().ends_with("`instances[0].n_predict` is not supported yet: send `max_tokens`"));
}

/// The fields that an error says to send: the names between the backquotes.
fn fields_in(instead: &str) -> Vec<&str> {
    instead.split('`').skip(1).step_by(2).collect()
}

#[test]
fn what_is_to_be_sent_instead_is_a_field_that_works() {
    // These are named with the route that has them.
    let outside = ["watermark", "/generate", "prompt"];
    for field in FIELDS {
        for name in field.instead().map(fields_in).unwrap_or_default() {
            let routes = [On::Chat, On::Completions].into_iter().filter(|on| field.on.includes(*on));
            let works = |on| names_that_work(on).contains(&name.to_owned());
            assert!(routes.into_iter().all(works) || outside.contains(&name), "{}: {name}", field.name);
        }
    }
    for body in BODIES {
        for (field, instead) in body.instead {
            for name in fields_in(instead) {
                let first = name.split('.').next().unwrap().to_owned();
                assert!(works(body).contains(&first), "{field}: {name}");
            }
            let is_looked_up =
                FIELDS.iter().any(|row| row.name == *field && !matches!(row.fate, Fate::Accepted));
            assert!(is_looked_up || body.refused(field).is_some(), "{field} is not refused");
        }
    }
}

#[test]
fn a_field_of_the_other_route_is_refused_where_it_would_change_the_reply() {
    for (on, name, value, route) in [
        (On::Completions, "tools", json!([{"type": "function"}]), "chat completions"),
        (On::Completions, "chat_template", json!("x"), "chat completions"),
        (On::Completions, "reasoning_effort", json!("low"), "chat completions"),
        (On::Completions, "separate_reasoning", json!(false), "chat completions"),
        (On::Chat, "suffix", json!("x"), "completions"),
    ] {
        let error = check_on(on, json!({name: value}), false).unwrap_err();
        assert_eq!(error.param(), Some(name));
        assert!(error.to_string().ends_with(&format!("`{name}` is a field of {route} only")), "{error}");
    }
    let neutral = json!({
        "tools": [], "tool_choice": "none", "include_reasoning": false, "separate_reasoning": true, "store": true,
        "service_tier": "auto", "top_logprobs": 0, "messages": [{"role": "user"}],
    });
    assert_eq!(check_on(On::Completions, neutral.clone(), false), Ok(()));
    assert_eq!(check_on(On::Completions, neutral, true).unwrap_err().param(), Some("tools"));
}

#[test]
fn a_field_of_chat_completions_is_refused_where_a_route_that_becomes_one_has_it_not() {
    const BOTH: &str = "is a field of chat completions and completions only";
    const CHAT: &str = "is a field of chat completions only";
    for (on, name, value, words) in [
        (On::Responses, "guided_json", json!({"type": "object"}), BOTH),
        (On::Responses, "max_tokens", json!(3), BOTH),
        (On::Responses, "max_tokens", json!(3), "only: send `max_output_tokens`"),
        (On::Responses, "n_predict", json!(3), "is not supported yet: send `max_output_tokens`"),
        (On::Responses, "guided_regex", json!("a"), "send `structured_outputs`"),
        (On::Messages, "stop", json!("x"), "only: send `stop_sequences`"),
        (On::Responses, "messages", json!([{"role": "user"}]), CHAT),
        (On::Responses, "suffix", json!("x"), "is a field of completions only"),
        (On::Responses, "mirostat", json!(2), "is not supported"),
        (On::Responses, "moderation", json!({"model": "x"}), "is not supported"),
        (On::Responses, "previous_response", json!({"id": "x"}), "is not supported"),
        (On::ResponsesCompact, "seed", json!(1), BOTH),
        (On::Messages, "stop", json!("x"), BOTH),
        (On::Messages, "reasoning_effort", json!("low"), CHAT),
        (On::Messages, "thread", json!({"type": "create"}), "is not supported"),
    ] {
        let error = check_on(on, json!({name: value}), false).unwrap_err();
        assert_eq!(error.param(), Some(name), "{on:?}");
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(check_on(on, json!({name: null}), false), Ok(()), "{name}");
    }
    let neutral = json!({
        "guided_json": {}, "n": null, "echo": false, "min_tokens": 0, "mirostat": 0, "use_beam_search": false,
        "user": "u", "rid": "r", "thread": null, "enable_response_messages": false,
    });
    for on in [On::Responses, On::ResponsesCompact, On::Messages] {
        assert_eq!(check_on(on, neutral.clone(), false), Ok(()), "{on:?}");
    }
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
fn the_documentation_has_the_same_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/parameters.md");
    let documented = std::fs::read_to_string(path).unwrap_or_default();
    for (head, rule, expected) in [
        ("| field | routes | of | | |", "| --- | --- | --- | --- | --- |", FIELDS.iter().map(row).collect()),
        (
            "| body | fields | accepted, no effect | refused |",
            "| --- | --- | --- | --- |",
            BODIES.iter().map(row_of_body).collect::<Vec<String>>(),
        ),
    ] {
        let rows: Vec<&str> = documented.lines().skip_while(|line| *line != head).skip(2).collect();
        let rows: Vec<&str> = rows.into_iter().take_while(|line| line.starts_with('|')).collect();
        assert!(rows == expected, "docs/parameters.md should have:\n{head}\n{rule}\n{}", expected.join("\n"));
    }
}

/// The row of a body in the documentation.
fn row_of_body(body: &BodyFields) -> String {
    let quoted =
        |names: Vec<String>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let accepted = body.accepted.iter().map(|name| (*name).to_owned()).collect();
    let refused = body.refused.iter().map(|(name, _)| (*name).to_owned()).collect();
    let cells = [body.title.to_owned(), quoted(works(body)), quoted(accepted), quoted(refused)];
    format!("| {} |", cells.join(" | ")).replace("|  |", "| |").replace("|  |", "| |")
}

/// The row of a field in the documentation.
fn row(field: &Field) -> String {
    let routes = match field.on {
        On::Chat => "chat",
        On::Completions => "completions",
        On::Both => "both",
        on => unreachable!("{on:?} has a table of its own"),
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
