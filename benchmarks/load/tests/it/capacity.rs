//! The generator must not be the bottleneck: many streams at once lose nothing. Figures are in docs/benchmarking.md.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::sync::atomic::Ordering;

use crate::support::Pace;
use clap::Parser;
use penstock_load::{Cli, run};

#[test]
fn five_hundred_streams_at_once_lose_no_event() {
    let (address, seen) = crate::support::start_thread(Pace { burst: 8, ..Pace::default() });
    let url = format!("http://{address}");
    let flags = "-n 1000 --concurrency 500 --input-len 3 --output-len 60 --warmup 0 --count-tokens pieces";
    let words = ["penstock-bench", "run", "--quiet", "--url", &url].into_iter().chain(flags.split(' '));
    let mut out = Vec::new();
    run(Cli::parse_from(words), &mut out).unwrap();
    let tables = String::from_utf8(out).unwrap();
    assert!(tables.contains("1000 of 1000, 0 failed") && tables.contains("(60000 in all)"), "{tables}");
    assert_eq!(seen.tokens.load(Ordering::Relaxed), 60_000);
}
