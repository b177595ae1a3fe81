//! The whole command against a server that streams a known number of tokens, or fails in a known way.
//! Counts and fields are asserted, never times.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Pace, Seen};
use clap::Parser;
use penstock_load::{Cli, run};
use serde_json::{Value, json};

/// The command's results file, its tables, and whether its exit code was success.
struct Outcome {
    results: Value,
    tables: String,
    is_success: bool,
}

impl Outcome {
    fn summary(&self) -> &Value {
        &self.results["runs"][0]["summary"]
    }

    fn errors(&self) -> &Value {
        &self.summary()["errors"]
    }
}

fn call(words: &[&str]) -> Result<(String, bool), String> {
    let cli =
        Cli::try_parse_from([&["penstock-bench"], words].concat()).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    let code = run(cli, &mut out).map_err(|error| error.to_string())?;
    Ok((String::from_utf8(out).unwrap(), code == std::process::ExitCode::SUCCESS))
}

fn bench(command: &str, url: &str, flags: &str) -> Result<Outcome, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let mut words = vec![command, "--url", url, "--quiet", "--output", path];
    words.extend(flags.split_whitespace());
    let (tables, is_success) = call(&words)?;
    let results = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    Ok(Outcome { results, tables, is_success })
}

fn server() -> (String, std::sync::Arc<Seen>) {
    let (address, seen) = crate::support::start_thread(Pace::default());
    (format!("http://{address}"), seen)
}

#[test]
fn every_api_counts_requests_pieces_and_tokens() {
    for api in ["chat", "completions", "generate"] {
        let (url, seen) = server();
        let flags = format!("--api {api} -n 20 --concurrency 4 --input-len 7 --output-len 12 --warmup 0");
        let outcome = bench("run", &url, &flags).unwrap();
        let summary = outcome.summary();
        assert_eq!(summary["requests"]["completed"], 20, "{api}");
        assert_eq!(summary["tokens"]["input"], 20 * 7, "{api}");
        assert_eq!(summary["tokens"]["output"], 20 * 12, "{api}");
        assert_eq!(summary["latency_ms"]["ttft"]["count"], 20, "{api}");
        assert_eq!(summary["latency_ms"]["itl"]["count"], 20 * 11, "{api}");
        assert_eq!(seen.tokens.load(Ordering::Relaxed), 20 * 12, "{api}");
        assert!(outcome.is_success && outcome.tables.contains("20 of 20, 0 failed"), "{}", outcome.tables);
    }
}

#[test]
fn connections_are_kept() {
    let (url, seen) = server();
    bench("run", &url, "-n 50 --concurrency 3 --output-len 4").unwrap();
    assert_eq!(seen.requests.load(Ordering::Relaxed), 51); // one of them is the warm-up
    assert!(seen.connections.load(Ordering::Relaxed) <= 3);
}

#[test]
fn errors_are_counted_by_class() {
    let faults = [
        ("overloaded", "http_429", "HTTP 429 Too Many Requests: Model is overloaded"),
        ("not_found", "http_404", "HTTP 404 Not Found: Not Found"),
        ("in_stream", "in_stream", "no blocks left"),
        ("cut_off", "cut_off", "the stream ended after 2 pieces without saying that it is complete"),
        ("plain", "not_streaming", "does the server stream here?"),
        ("hang_up", "connect", "cannot reach 127.0.0.1"),
        ("silent", "timeout", "not done within --timeout 200ms"),
    ];
    let (url, _) = server();
    for (fault, class, message) in faults {
        let path = if fault == "not_found" {
            "--path /nowhere".into()
        } else {
            format!("--path /{fault}/v1/completions")
        };
        let flags =
            format!("{path} --api completions -n 2 --output-len 5 --warmup 0 --timeout 200ms --model m");
        let outcome = bench("run", &url, &flags).unwrap();
        assert_eq!(outcome.errors()[class]["count"], 2, "{fault}: {}", outcome.errors());
        let example = outcome.errors()[class]["example"].as_str().unwrap();
        assert!(example.contains(message), "{fault}: {example}");
        assert!(!outcome.is_success, "{fault}");
    }
}

#[test]
fn a_first_failure_ends_the_run_with_one_line() {
    let (url, _) = server();
    let refused = bench("run", "http://127.0.0.1:1", "").err().unwrap();
    assert!(refused.starts_with("cannot reach 127.0.0.1:1: "), "{refused}");
    let plain = bench("run", &url, "--path /plain/v1/chat/completions").err().unwrap();
    let expected = "the first warm-up request failed (not_streaming): the answer is of type application/json, \
        not text/event-stream: does the server stream here?";
    assert_eq!(plain, expected);
    let scheme = bench("run", "ftp://x", "").err().unwrap();
    assert_eq!(scheme, "--url: scheme `ftp` of `ftp://x` is not http or https");
}

#[test]
fn tokens_are_counted_where_the_server_does_not() {
    let (url, _) = server();
    let path =
        "--path /no_usage/v1/completions --api completions -n 4 --input-len 9 --output-len 6 --warmup 0";
    let pieces = bench("run", &url, path).unwrap();
    assert_eq!(pieces.summary()["tokens"]["output"], 4 * 6);
    let counted = bench("run", &url, &format!("{path} --tokenizer server")).unwrap();
    assert_eq!(counted.summary()["tokens"]["input"], 4 * 9);
    assert_eq!(counted.summary()["tokens"]["output"], 4 * 6); // `tok tok … end`: a word is a token
}

#[test]
fn an_open_loop_sends_its_whole_schedule() {
    let (url, _) = server();
    for arrival in ["constant", "poisson", "gamma", "ramp --ramp-to 900"] {
        let outcome =
            bench("run", &url, &format!("--arrival {arrival} --rate 300 -n 60 --output-len 3")).unwrap();
        let summary = outcome.summary();
        assert_eq!(summary["requests"]["completed"], 60, "{arrival}");
        assert_eq!(summary["generator"]["lateness_ms"]["count"], 60, "{arrival}");
        let expected = if arrival.starts_with("ramp") { 600.0 } else { 300.0 };
        assert_eq!(summary["rates"]["offered"], expected, "{arrival}");
    }
}

#[test]
fn conversations_carry_the_answers_along() {
    let (url, seen) = server();
    let outcome = bench("run", &url, "-n 2 --turns 3 --input-len 5 --output-len 4 --warmup 0").unwrap();
    assert_eq!(outcome.summary()["requests"]["completed"], 6);
    let bodies = seen.bodies.lock().unwrap();
    let last =
        bodies.iter().find(|body| body["messages"].as_array().is_some_and(|list| list.len() == 5)).unwrap();
    let roles: Vec<_> =
        last["messages"].as_array().unwrap().iter().map(|one| one["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
    assert_eq!(last["messages"][1]["content"], "tok tok tok end");
}

#[test]
fn requests_have_the_settings_of_the_flags() {
    let (url, seen) = server();
    let flags = "-n 1 --warmup 0 --output-len 3 --ignore-eos --temperature 0.5 --top-k 7 --sampling-seed 9 \
        --api-key k --header X-Tenant:blue --model mine --extra-body {\"user\":\"u\"}";
    bench("run", &url, flags).unwrap();
    let body = seen.bodies.lock().unwrap()[0].clone();
    for (field, expected) in [
        ("model", json!("mine")),
        ("max_tokens", json!(3)),
        ("ignore_eos", json!(true)),
        ("temperature", json!(0.5)),
        ("top_k", json!(7)),
        ("seed", json!(9)),
        ("user", json!("u")),
        ("stream_options", json!({"include_usage": true})),
    ] {
        assert_eq!(body[field], expected, "{field}");
    }
    let head = seen.last_head.lock().unwrap().to_lowercase();
    assert!(head.contains("authorization: bearer k\r\n") && head.contains("x-tenant: blue\r\n"), "{head}");
}

#[test]
fn a_trace_is_replayed_with_its_lengths() {
    let (url, seen) = server();
    let file = tempfile::NamedTempFile::new().unwrap();
    let line = |at: u32| {
        format!("{{\"timestamp\":{at},\"input_length\":20,\"output_length\":5,\"hash_ids\":[1]}}\n")
    };
    std::fs::write(file.path(), [0, 10, 20].map(line).concat()).unwrap();
    let dataset = file.path().display();
    let flags = format!("--arrival trace --input mooncake --dataset {dataset} --warmup 0 --trace-speed 2");
    let outcome = bench("run", &url, &flags).unwrap();
    assert_eq!(outcome.summary()["rates"]["offered"], 200.0); // three arrivals in 10 ms: two gaps of 5 ms
    assert_eq!(seen.tokens.load(Ordering::Relaxed), 15);
}

#[test]
fn repeats_show_their_spread_and_seeds_differ() {
    let (url, seen) = server();
    let outcome = bench("run", &url, "-n 3 --repeats 3 --warmup 0 --output-len 4").unwrap();
    let seeds: Vec<_> =
        outcome.results["runs"].as_array().unwrap().iter().map(|run| run["seed"].clone()).collect();
    assert_eq!(seeds, [json!(0), json!(1), json!(2)]);
    assert_eq!(outcome.results["variation"].as_array().unwrap().len(), 7);
    assert!(outcome.tables.contains("Over repeats"));
    let bodies = seen.bodies.lock().unwrap();
    assert_ne!(bodies[0]["messages"], bodies[3]["messages"]);
}

#[test]
fn a_duration_ends_a_closed_loop() {
    let (address, _) =
        crate::support::start_thread(Pace { gap: Duration::from_millis(1), ..Pace::default() });
    let outcome =
        bench("run", &format!("{address}"), "--duration 200ms --concurrency 2 --output-len 3").unwrap();
    assert!(outcome.summary()["requests"]["completed"].as_u64().unwrap() >= 2);
    assert_eq!(outcome.summary()["requests"]["failed"], 0);
}

#[test]
fn limits_and_prices_are_reported() {
    let (url, _) = server();
    let flags = "-n 5 --output-len 4 --slo ttft:1h,tpot:1h --price-per-hour 3600";
    let outcome = bench("run", &url, flags).unwrap();
    assert_eq!(outcome.summary()["goodput"]["attainment"], 1.0);
    let cost = outcome.summary()["cost"]["per_1000_requests"].as_f64().unwrap();
    let rate = outcome.summary()["throughput"]["requests_per_s"].as_f64().unwrap();
    assert!((cost * rate - 1000.0).abs() < 1e-6); // a unit of money a second, over requests a second
    assert!(outcome.tables.contains("Goodput (ttft:3600000ms,tpot:3600000ms)"));
}

#[test]
fn a_sweep_measures_every_rate_it_is_given() {
    let (url, _) = server();
    let outcome = bench("sweep", &url, "--rates 200,100 -n 20 --output-len 3").unwrap();
    let rates: Vec<_> =
        outcome.results["runs"].as_array().unwrap().iter().map(|run| run["rate"].clone()).collect();
    assert_eq!(rates, [json!(100.0), json!(200.0)]);
    assert!(outcome.tables.contains("Highest sustained rate"));
}

#[test]
fn a_sweep_of_a_server_that_meets_no_limit_ends_without_a_rate() {
    let (url, _) = server();
    let outcome = bench("sweep", &url, "--from 500 -n 4 --output-len 3 --slo e2e:1us").unwrap();
    assert_eq!(outcome.results["sweep"]["sustained_rate"], Value::Null);
    assert!(!outcome.is_success);
}

#[test]
fn reports_put_results_side_by_side() {
    let (url, _) = server();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (left, right, page) = (path("left.json"), path("right.json"), path("both.html"));
    for (label, file) in [("left", &left), ("right", &right)] {
        call(&["run", "--url", &url, "-q", "-n", "3", "--output-len", "3", "--label", label, "-o", file])
            .unwrap();
    }
    let (tables, _) = call(&["report", &left, &right, "--html", &page]).unwrap();
    assert!(
        tables.lines().next().unwrap().contains("left") && tables.contains("Output tokens/s"),
        "{tables}"
    );
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("2 runs side by side") && html.matches("<svg").count() >= 6);
}

#[test]
fn requests_are_spread_over_adapters() {
    let (url, seen) = server();
    let flags =
        "--api generate -n 60 --input-len 2 --output-len 2 --adapters a,b,c --adapter-spread zipf --warmup 0";
    let outcome = bench("run", &url, flags).unwrap();
    let bodies = seen.bodies.lock().unwrap();
    let count = |name: &str| bodies.iter().filter(|body| body["parameters"]["adapter_id"] == name).count();
    let [first, second, third] = ["a", "b", "c"].map(count);
    assert_eq!(first + second + third, 60);
    assert!(first > second && second > third && third > 0, "{first} {second} {third}");
    assert_eq!(outcome.results["setup"]["adapters"], json!(["a", "b", "c"]));
    assert_eq!(outcome.results["setup"]["adapter_spread"], "zipf");
    let problem = bench("run", &url, "--adapter-spread zipf").err().unwrap();
    assert!(problem.contains("--adapters"), "{problem}");
}
