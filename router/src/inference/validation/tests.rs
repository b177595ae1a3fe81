//! Checks each field at its limit, just beyond it, and far beyond it.

use penstock_scheduler::SamplingParams;

use super::*;
use crate::inference::limits::Watermark;

fn limits() -> RequestLimits {
    RequestLimits {
        max_concurrent_requests: 8,
        max_input_tokens: 15,
        max_total_tokens: 20,
        default_max_tokens: None,
        max_best_of: 2,
        max_stop_sequences: 4,
        max_top_n_tokens: 5,
        max_client_batch_size: 4,
        vertex_timeout_s: 55,
        allows_grammars: true,
        strict_fields: false,
        watermark: Watermark { gamma: 0.5, delta: 2.0 },
        vocab_size: 100,
    }
}

fn check_with(edit: impl FnOnce(&mut Parameters)) -> Result<CheckedRequest, Error> {
    let mut parameters = Parameters::default();
    edit(&mut parameters);
    check(parameters, &limits())
}

fn sampling_with(edit: impl FnOnce(&mut Parameters)) -> SamplingParams {
    check_with(edit).unwrap().sampling.clone()
}

/// The parameter that the error names.
fn refused(edit: impl FnOnce(&mut Parameters)) -> String {
    let error = check_with(edit).expect_err("out of range");
    assert_eq!(error.kind().status(), 422);
    error.param().expect("names its parameter").to_owned()
}

fn fit(edit: impl FnOnce(&mut Parameters), prompt_len: u32) -> Result<CheckedRequest, Error> {
    check_with(edit)?.fit((0..prompt_len).collect(), &limits())
}

#[test]
fn a_request_without_parameters_is_greedy_and_as_long_as_fits() {
    let request = fit(|_| {}, 5).unwrap();
    assert_eq!(request.max_new_tokens, 15);
    assert_eq!(request.sequence(0, 7).sampling, SamplingParams::greedy());
}

#[test]
fn any_sampling_parameter_turns_sampling_on_for_native_routes() {
    assert_eq!(sampling_with(|p| p.do_sample = true).temperature, 1.0);
    assert_eq!(sampling_with(|p| p.top_k = Some(3)).temperature, 1.0);
    assert_eq!(sampling_with(|p| p.top_p = Some(1.0)).temperature, 1.0);
    assert_eq!(sampling_with(|p| p.typical_p = Some(0.5)).temperature, 1.0);
    assert_eq!(sampling_with(|p| p.repetition_penalty = Some(1.5)).temperature, 0.0);
}

#[test]
fn openai_samples_unless_the_temperature_is_zero() {
    let chat = |temperature| {
        move |p: &mut Parameters| {
            p.dialect = Dialect::CHAT;
            p.temperature = temperature;
        }
    };
    assert_eq!(sampling_with(chat(None)).temperature, 1.0);
    assert_eq!(sampling_with(chat(Some(0.0))).temperature, 0.0);
    assert_eq!(sampling_with(chat(Some(0.7))).temperature, 0.7);
}

#[test]
fn temperatures_stay_within_what_logits_can_be_divided_by() {
    for bad in [0.0, -1.0, 1e39, 100.1, f64::NAN, f64::INFINITY] {
        assert_eq!(refused(|p| p.temperature = Some(bad)), "temperature", "{bad}");
    }
    assert_eq!(sampling_with(|p| p.temperature = Some(1e-40)).temperature, 0.0);
    assert_eq!(sampling_with(|p| p.temperature = Some(100.0)).temperature, 100.0);
}

#[test]
fn penalties_have_ranges() {
    for bad in [0.0, -1.0, 1e-40, 101.0, f64::NAN] {
        assert_eq!(refused(|p| p.repetition_penalty = Some(bad)), "repetition_penalty");
    }
    for bad in [-2.1, 2.1, f64::NAN] {
        assert_eq!(refused(|p| p.frequency_penalty = Some(bad)), "frequency_penalty");
        assert_eq!(refused(|p| p.presence_penalty = Some(bad)), "presence_penalty");
    }
    assert_eq!(sampling_with(|p| p.frequency_penalty = Some(-2.0)).frequency_penalty, -2.0);
}

#[test]
fn probabilities_are_above_zero_and_at_most_one() {
    for bad in [0.0, -0.1, 1.1, f64::NAN] {
        assert_eq!(refused(|p| p.top_p = Some(bad)), "top_p");
        assert_eq!(refused(|p| p.typical_p = Some(bad)), "typical_p");
    }
    assert_eq!(refused(|p| p.min_p = Some(1.1)), "min_p");
    assert_eq!(sampling_with(|p| p.top_p = Some(1.0)).top_p, 1.0);
    assert!(sampling_with(|p| p.top_p = Some(1e-60)).top_p > 0.0);
}

#[test]
fn top_k_is_positive_and_cut_to_the_vocabulary() {
    assert_eq!(refused(|p| p.top_k = Some(0)), "top_k");
    assert_eq!(refused(|p| p.top_k = Some(i64::MIN)), "top_k");
    assert_eq!(sampling_with(|p| p.top_k = Some(i64::MAX)).top_k, 100);
    let off = sampling_with(|p| {
        p.dialect = Dialect::CHAT;
        p.top_k = Some(-1);
    });
    assert_eq!(off.top_k, 0);
}

#[test]
fn best_of_needs_sampling_no_seed_and_no_stream() {
    let sampled = |n| {
        move |p: &mut Parameters| {
            p.do_sample = true;
            p.best_of = Some(n);
        }
    };
    assert_eq!(check_with(sampled(2)).unwrap().best_of, 2);
    assert_eq!(refused(sampled(3)), "best_of");
    assert_eq!(refused(sampled(0)), "best_of");
    assert_eq!(refused(sampled(u64::MAX)), "best_of");
    assert_eq!(refused(|p| p.best_of = Some(2)), "best_of");
    assert_eq!(refused(|p| (p.best_of, p.do_sample, p.seed) = (Some(2), true, Some(1))), "best_of");
    assert_eq!(refused(|p| (p.best_of, p.do_sample, p.is_stream) = (Some(2), true, true)), "best_of");
}

#[test]
fn openai_may_ask_for_several_seeded_choices() {
    let request =
        fit(|p| (p.dialect, p.best_of, p.seed) = (Dialect::CHAT, Some(2), Some(u64::MAX)), 3).unwrap();
    assert_eq!(request.sequence(0, 5).sampling.seed, u64::MAX);
    assert_eq!(request.sequence(1, 5).sampling.seed, 0);
}

#[test]
fn stop_strings_are_counted_and_not_empty() {
    let stops = |n| vec!["x".to_owned(); n];
    assert!(check_with(|p| p.stop = stops(4)).is_ok());
    assert_eq!(refused(|p| p.stop = stops(5)), "stop");
    assert_eq!(refused(|p| p.stop = vec![String::new()]), "stop");
    assert_eq!(refused(|p| p.stop = vec!["x".repeat(4097)]), "stop");
}

#[test]
fn top_tokens_and_biases_have_limits() {
    assert_eq!(sampling_with(|p| p.top_n_tokens = Some(5)).num_top_logprobs, 5);
    assert_eq!(refused(|p| p.top_n_tokens = Some(6)), "top_n_tokens");
    assert_eq!(refused(|p| (p.top_n_tokens, p.dialect) = (Some(6), Dialect::CHAT)), "top_logprobs");
    assert_eq!(sampling_with(|p| p.logit_bias = vec![(99, -100.0)]).logit_bias, [(99, -100.0)]);
    assert_eq!(refused(|p| p.logit_bias = vec![(100, 1.0)]), "logit_bias");
    assert_eq!(refused(|p| p.logit_bias = vec![(1, 100.5)]), "logit_bias");
    assert_eq!(refused(|p| p.logit_bias = vec![(1, 1.0); 1025]), "logit_bias");
}

#[test]
fn the_length_rule_holds_at_its_edges() {
    assert_eq!(fit(|p| p.max_new_tokens = Some(5), 15).unwrap().max_new_tokens, 5);
    assert_eq!(fit(|p| p.max_new_tokens = Some(6), 15).unwrap().max_new_tokens, 5);
    assert_eq!(fit(|p| p.max_new_tokens = Some(u64::MAX), 1).unwrap().max_new_tokens, 19);
    assert_eq!(fit(|p| p.max_new_tokens = Some(1), 16).unwrap_err().param(), Some("inputs"));
    assert_eq!(fit(|_| {}, 15).unwrap().max_new_tokens, 5);
    assert_eq!(fit(|_| {}, 16).unwrap_err().param(), Some("inputs"));
    assert_eq!(fit(|_| {}, 0).unwrap_err().param(), Some("inputs"));
    assert_eq!(refused(|p| p.max_new_tokens = Some(0)), "max_new_tokens");
}

#[test]
fn messages_name_value_limit_and_flag() {
    for (dialect, message) in [
        (Dialect::Native, "`inputs` must have at most 15 tokens (--max-input-tokens). Given: 16"),
        (Dialect::Messages, "prompt is too long: 16 tokens > 15 maximum (--max-input-tokens)"),
        (
            Dialect::CHAT,
            "This model's maximum context length is 20 tokens, of which `messages` may have 15 \
             (--max-input-tokens). Given: 16. Please reduce the length of `messages`",
        ),
    ] {
        let error = fit(|p| p.dialect = dialect, 16).unwrap_err();
        assert_eq!(error.to_string(), format!("Input validation error: {message}"));
        assert_eq!(error.param(), Some(dialect.names().inputs));
    }
}

#[test]
fn truncation_keeps_the_end_of_the_prompt() {
    let request = fit(|p| p.truncate = Some(3), 50).unwrap();
    assert_eq!(&*request.prompt, [47, 48, 49]);
    assert_eq!(refused(|p| p.truncate = Some(0)), "truncate");
    assert_eq!(refused(|p| p.truncate = Some(16)), "truncate");
}

#[test]
fn token_ids_are_within_the_vocabulary() {
    let checked = check_with(|p| p.dialect = Dialect::COMPLETIONS).unwrap();
    assert_eq!(checked.fit(vec![1, 100], &limits()).unwrap_err().param(), Some("prompt"));
}

#[test]
fn a_maximum_below_the_minimum_is_refused() {
    assert!(fit(|p| (p.min_new_tokens, p.max_new_tokens) = (Some(3), Some(3)), 1).is_ok());
    let error = fit(|p| (p.min_new_tokens, p.max_new_tokens) = (Some(4), Some(3)), 1).unwrap_err();
    assert_eq!(error.param(), Some("min_new_tokens"));
}

#[test]
fn a_watermark_has_the_parameters_of_the_flags() {
    let sampling = sampling_with(|p| p.watermark = true);
    assert_eq!((sampling.watermark_gamma, sampling.watermark_delta), (0.5, 2.0));
}

#[test]
fn the_default_length_is_for_requests_without_a_length() {
    let limits = RequestLimits { default_max_tokens: Some(3), ..limits() };
    let len = |prompt_len, edit: fn(&mut Parameters)| {
        let mut parameters = Parameters::default();
        edit(&mut parameters);
        let checked = check(parameters, &limits).unwrap();
        checked.fit(vec![1; prompt_len], &limits).unwrap().max_new_tokens
    };
    assert_eq!(len(10, |_| {}), 3);
    assert_eq!(len(15, |p| p.max_new_tokens = Some(5)), 5);
    assert_eq!(len(10, |p| p.min_new_tokens = Some(4)), 4);
    let limits = RequestLimits { default_max_tokens: Some(30), ..limits };
    let checked = check(Parameters::default(), &limits).unwrap();
    assert_eq!(checked.fit(vec![1; 15], &limits).unwrap().max_new_tokens, 5);
}
