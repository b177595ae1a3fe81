//! Tests of how requests become prompts and parameters.

use serde_json::{Map, Value, json};

use super::*;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::inference::Prompt;
use crate::inference::validation::Parameters;

fn chat(mut fields: Value) -> Result<(Prompt, Parameters), Error> {
    fields["messages"] = json!([{"role": "user", "content": "hi"}]);
    serde_json::from_value::<ChatRequest>(fields).unwrap().into_parts(Caller::default(), Dialect::CHAT)
}

fn completion(mut fields: Value) -> Result<Parameters, Error> {
    fields["prompt"] = json!("hi");
    serde_json::from_value::<CompletionRequest>(fields).unwrap().parameters(Caller::default())
}

#[test]
fn every_field_may_be_null() {
    let fields = "model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n \
        presence_penalty stop stream stream_options seed temperature top_p tools tool_choice response_format \
        reasoning_effort parallel_tool_calls \
        tool_prompt top_k min_p typical_p repetition_penalty ignore_eos min_tokens chat_template_kwargs add_generation_prompt \
        continue_final_message stop_token_ids bad_words allowed_token_ids skip_special_tokens \
        spaces_between_special_tokens include_stop_str_in_output truncate_prompt_tokens prompt_logprobs \
        timings_per_token return_token_ids return_tokens_as_token_ids best_of echo suffix priority cache_salt cache_ttl_ms queue_timeout_ms";
    let nulls: Map<String, Value> =
        fields.split_whitespace().map(|name| (name.to_owned(), Value::Null)).collect();
    let (_, parameters) = chat(nulls.clone().into()).unwrap();
    assert_eq!(parameters, Parameters { dialect: Dialect::CHAT, ..Parameters::default() });
    assert!(completion(nulls.into()).is_ok());
}

#[test]
fn stop_is_a_string_or_a_list() {
    assert_eq!(chat(json!({"stop": "a"})).unwrap().1.stop, ["a"]);
    assert_eq!(chat(json!({"stop": ["a", "b"]})).unwrap().1.stop, ["a", "b"]);
}

#[test]
fn both_names_of_the_length_are_accepted_together() {
    let parameters = chat(json!({"max_tokens": 3, "max_completion_tokens": 5})).unwrap().1;
    assert_eq!(parameters.max_new_tokens, Some(5));
}

#[test]
fn logit_bias_is_a_map_from_ids() {
    assert_eq!(chat(json!({"logit_bias": {"7": -5}})).unwrap().1.logit_bias, [(7, -5.0)]);
    assert_eq!(chat(json!({"logit_bias": [0.5]})).unwrap().1.logit_bias, []);
    for bad in [json!({"x": 1}), json!({"-1": 1}), json!({"1": "a"})] {
        assert_eq!(chat(json!({"logit_bias": bad})).err().unwrap().param(), Some("logit_bias"));
    }
}

#[test]
fn seeds_may_be_negative() {
    assert_eq!(chat(json!({"seed": -1})).unwrap().1.seed, Some(u64::MAX));
    assert_eq!(chat(json!({"seed": u64::MAX})).unwrap().1.seed, Some(u64::MAX));
}

#[test]
fn tool_choice_none_hides_the_tools() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let tools = |choice: &str| match chat(json!({"tools": [tool], "tool_choice": choice})) {
        Ok((Prompt::Chat(conversation), _)) => conversation.tools,
        _ => panic!("a conversation"),
    };
    assert_eq!(tools("none"), None);
    assert_eq!(tools("auto").unwrap().described(), json!([tool]));
}

#[test]
fn best_of_is_at_least_n_and_not_for_streams() {
    assert_eq!(completion(json!({"n": 2})).unwrap().best_of, Some(2));
    assert_eq!(completion(json!({"n": 1, "best_of": 2})).unwrap().best_of, Some(2));
    assert_eq!(completion(json!({"n": 2, "best_of": 1})).unwrap_err().param(), Some("best_of"));
    assert_eq!(completion(json!({"best_of": 2, "stream": true})).unwrap_err().param(), Some("best_of"));
    assert_eq!(completion(json!({"n": 0})).unwrap_err().param(), Some("n"));
}

#[test]
fn top_logprobs_needs_logprobs() {
    assert_eq!(chat(json!({"top_logprobs": 2})).err().unwrap().param(), Some("top_logprobs"));
    assert!(chat(json!({"top_logprobs": 0})).is_ok());
}

#[test]
fn effort_and_verbosity_reach_the_template() {
    let fields = json!({"reasoning_effort": "low", "verbosity": "high"});
    let Ok((Prompt::Chat(conversation), _)) = chat(fields) else { panic!() };
    assert_eq!(conversation.template_kwargs["reasoning_effort"], "low");
    assert_eq!(conversation.template_kwargs["verbosity"], "high");
    let given = json!({"verbosity": "low", "chat_template_kwargs": {"verbosity": "medium"}});
    let Ok((Prompt::Chat(conversation), _)) = chat(given) else { panic!() };
    assert_eq!(conversation.template_kwargs["verbosity"], "medium", "what is meant for the template wins");
    let error = chat(json!({"verbosity": "loud"})).err().unwrap();
    assert_eq!(error.param(), Some("verbosity"));
    assert!(error.to_string().contains("low, medium or high. Given: \"loud\""), "{error}");
}

#[test]
fn errors_use_the_name_of_the_field_that_was_sent() {
    let dialect = |fields: Value| chat(fields).unwrap().1.dialect;
    assert_eq!(dialect(json!({"max_tokens": 5})), Dialect::CHAT);
    for fields in [json!({"max_completion_tokens": 5}), json!({"max_completion_tokens": 5, "max_tokens": 6})]
    {
        assert_eq!(dialect(fields).names().max_new_tokens, "max_completion_tokens");
    }
    let longest = |fields: Value| completion(fields).unwrap().dialect.names().max_new_tokens;
    assert_eq!(longest(json!({"max_tokens": 5})), "max_tokens");
    let newer = json!({"max_completion_tokens": 5, "max_tokens": 6});
    assert_eq!(longest(newer.clone()), "max_completion_tokens");
    assert_eq!(completion(newer).unwrap().max_new_tokens, Some(5));
    let best_of = |fields: Value| completion(fields).unwrap().dialect.names().best_of;
    assert_eq!(best_of(json!({"n": 2})), "n");
    assert_eq!(best_of(json!({"n": 1, "best_of": 2})), "best_of");
}
