use clap::{CommandFactory, Parser};

use super::load::DEFAULT_PREPARED;
use super::*;
use crate::arrival::Arrival;

fn run_args(flags: &str) -> Result<RunArgs, String> {
    let words = ["penstock-bench", "run"].into_iter().chain(flags.split_whitespace());
    match Cli::try_parse_from(words).map_err(|error| error.to_string())?.command {
        Command::Run(args) => args.check().map(|()| args).map_err(|error| error.to_string()),
        other => panic!("parsed as {other:?}"),
    }
}

#[test]
fn the_flags_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn a_rate_alone_means_poisson_and_nothing_means_closed() {
    assert_eq!(run_args("--rate 3").unwrap().load.kind(), ArrivalKind::Poisson);
    assert_eq!(run_args("").unwrap().load.kind(), ArrivalKind::Closed);
    let ramp = run_args("--arrival ramp --rate 1 --ramp-to 9").unwrap().load.shape().unwrap();
    assert_eq!(ramp, Some(Arrival::Ramp { from: 1.0, to: 9.0 }));
}

#[test]
fn a_hundred_requests_unless_a_limit_is_given() {
    assert_eq!(run_args("").unwrap().load.max_requests(), Some(100));
    assert_eq!(run_args("--duration 5s").unwrap().load.max_requests(), None);
    let trace = run_args("--arrival trace --input azure --dataset t.csv").unwrap();
    assert_eq!((trace.load.max_requests(), trace.workload(0).unwrap().num_sessions), (None, usize::MAX));
    assert_eq!(run_args("--duration 5s -n 7").unwrap().load.max_requests(), Some(7));
}

#[test]
fn enough_sessions_are_prepared_for_a_rate_and_a_time() {
    assert_eq!(run_args("--rate 10 --duration 5s").unwrap().workload(0).unwrap().num_sessions, 60);
    assert_eq!(run_args("--duration 5s").unwrap().workload(0).unwrap().num_sessions, DEFAULT_PREPARED);
}

#[test]
fn refusals_name_the_flag_the_value_and_what_is_allowed() {
    let cases = [
        ("--arrival gamma", "--arrival gamma: needs --rate"),
        ("--arrival ramp --rate 2", "needs --ramp-to"),
        ("--arrival trace", "--arrival trace: --input random has no times; use mooncake, azure or jsonl"),
        ("--arrival closed --rate 2", "--rate 2: has no effect with --arrival closed; use --concurrency"),
        ("--input sharegpt", "--input sharegpt: needs --dataset"),
        (
            "--rate 2 --concurrency 8",
            "--concurrency 8: has no effect with --arrival poisson; use --max-concurrency",
        ),
        ("--burstiness 2", "--burstiness 2: has no effect with --arrival closed; it needs gamma"),
        ("--dataset x.json", "--dataset x.json: has no effect with --input random; it needs sharegpt, jsonl"),
        ("--count-tokens tokenizer", "--count-tokens tokenizer: needs --tokenizer"),
        ("--extra-body [1]", "--extra-body [1]: not a JSON object"),
        (
            "--prompt hi --range-ratio 0.5",
            "--range-ratio 0.5: has no effect with --input prompt; it needs random",
        ),
        ("--rate -1", "must be a number above 0"),
        ("--concurrency 0", "must be a whole number above 0"),
        ("--range-ratio 2", "must be from 0 to 1"),
        ("--slo speed:3", "unknown metric `speed`"),
        ("--timeout soon", "`soon` is not a span of time"),
        ("--api grpc", "[possible values: chat, completions, generate]"),
    ];
    for (flags, expected) in cases {
        let message = run_args(flags).expect_err(flags);
        assert!(message.contains(expected), "{flags}: {message}");
    }
}
