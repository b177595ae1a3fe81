//! Figures as text for a terminal.

use std::fmt::Write;

use crate::results::{Results, Run, SweepFinding, Variation};
use crate::stats::Distribution;
use crate::summary::{Cost, Figure, Summary};

/// A block of text for all runs of a call.
pub fn results(results: &Results) -> String {
    let mut text = String::new();
    match &results.sweep {
        Some(finding) => text += &sweep(&results.runs, *finding),
        None => text.extend(results.runs.iter().map(|run| summary(&run.summary))),
    }
    text + &variation(&results.variation)
}

/// The figures of one run.
pub fn summary(summary: &Summary) -> String {
    let mut lines = Lines::default();
    requests(&mut lines, summary);
    throughput(&mut lines, summary);
    latencies(&mut lines, summary);
    if let Some(goodput) = &summary.goodput {
        let within =
            format!("{:.2} req/s, {:.1}% of requests", goodput.requests_per_s, goodput.attainment * 100.0);
        lines.row(&format!("Goodput ({})", goodput.limits), &within);
    }
    summary.cost.iter().for_each(|found| cost(&mut lines, found));
    generator(&mut lines, summary);
    lines.0
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn row(&mut self, name: &str, value: &str) {
        let _ = writeln!(self.0, "{name:<34} {value}"); // writing to a string cannot fail
    }

    fn heading(&mut self, text: &str) {
        let _ = writeln!(self.0, "\n{text}");
    }
}

fn requests(lines: &mut Lines, summary: &Summary) {
    let found = &summary.requests;
    let cancelled =
        if found.cancelled > 0 { format!(", {} cancelled", found.cancelled) } else { String::new() };
    lines.heading("Requests");
    lines.row(
        "Completed",
        &format!("{} of {}, {} failed{cancelled}", found.completed, found.total, found.failed),
    );
    for (class, errors) in &summary.errors {
        lines.row(&format!("  {class}"), &format!("{} × {}", errors.count, errors.example));
    }
    lines.row("Duration", &format!("{:.2} s", summary.duration_s));
    lines.row("Concurrency", &format!("{:.1} mean, {} peak", found.mean_concurrency, found.peak_concurrency));
    if let Some(offered) = summary.rates.offered {
        let (sent, achieved) = (summary.rates.sent, summary.rates.achieved);
        lines.row("Rate", &format!("{offered:.2} req/s offered, {sent:.2} sent, {achieved:.2} achieved"));
    }
}

fn throughput(lines: &mut Lines, summary: &Summary) {
    let (found, tokens) = (&summary.throughput, &summary.tokens);
    lines.heading("Throughput");
    lines.row("Requests", &format!("{:.2} req/s", found.requests_per_s));
    lines.row(
        "Input tokens",
        &format!("{:.1} tok/s ({} in all{})", found.input_tokens_per_s, tokens.input, cached(tokens)),
    );
    lines.row("Output tokens", &format!("{:.1} tok/s ({} in all)", found.output_tokens_per_s, tokens.output));
    lines.row("Total tokens", &format!("{:.1} tok/s", found.total_tokens_per_s));
}

fn cached(tokens: &crate::summary::Tokens) -> String {
    if tokens.cached_input > 0 { format!(", {} cached", tokens.cached_input) } else { String::new() }
}

fn latencies(lines: &mut Lines, summary: &Summary) {
    let latency = &summary.latency_ms;
    lines.heading(&format!("{:<34} {:>10} {:>10} {:>10} {:>10}", "Latency, ms", "mean", "p50", "p90", "p99"));
    let rows = [
        ("Time to first token (TTFT)", latency.ttft),
        ("Time per output token (TPOT)", latency.tpot),
        ("Inter-token latency (ITL)", latency.itl),
        ("End to end (E2E)", latency.e2e),
    ];
    for (name, Distribution { mean, p50, p90, p99, .. }) in rows {
        lines.row(name, &format!("{mean:>10.2} {p50:>10.2} {p90:>10.2} {p99:>10.2}"));
    }
    lines.0.push('\n');
}

fn cost(lines: &mut Lines, cost: &Cost) {
    lines.row("Cost per 1,000 requests", &format!("{:.6}", cost.per_1000_requests));
    lines.row("Cost per 1,000 output tokens", &format!("{:.6}", cost.per_1000_output_tokens));
    lines.row("Cost per million output tokens", &format!("{:.4}", cost.per_million_output_tokens));
    lines.row("Cost per million tokens", &format!("{:.4}", cost.per_million_total_tokens));
}

fn generator(lines: &mut Lines, summary: &Summary) {
    let found = &summary.generator;
    let late = if found.lateness_ms.count == 0 {
        String::new()
    } else {
        format!("sent late by {:.1} ms at p99, ", found.lateness_ms.p99)
    };
    let condition = format!("{late}timers by {:.1} ms, {:.2} cores", found.timer_lag_ms.p99, found.cpu_cores);
    lines.row("Generator", &condition);
    found.warning().iter().for_each(|warning| lines.row("Warning", warning));
}

fn variation(found: &[Variation]) -> String {
    if found.is_empty() {
        return String::new();
    }
    let mut lines = Lines::default();
    lines.heading(&format!("{:<34} {:>10} {:>10}", "Over repeats", "mean", "variation"));
    for one in found {
        lines.row(&one.metric, &format!("{:>10.2} {:>9.2}%", one.mean, one.coefficient * 100.0));
    }
    lines.0
}

fn sweep(runs: &[Run], finding: SweepFinding) -> String {
    let mut lines = Lines::default();
    lines.heading(&format!(
        "{:>8} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8} {:>7}",
        "offered", "achieved", "out tok/s", "TTFT p50", "TTFT p99", "TPOT p99", "E2E p99", "good", "failed"
    ));
    runs.iter().for_each(|run| sweep_row(&mut lines, run));
    lines.0.push('\n');
    let sustained = finding.sustained_rate.map_or("none".into(), |rate| format!("{rate:.2} req/s"));
    lines.row("Highest sustained rate", &sustained);
    lines.0
}

fn sweep_row(lines: &mut Lines, run: &Run) {
    let summary = &run.summary;
    let latency = &summary.latency_ms;
    let good = summary.goodput.map_or_else(|| "-".into(), |good| format!("{:.1}%", good.attainment * 100.0));
    let _ = writeln!(
        lines.0,
        "{:>8.2} {:>9.2} {:>10.1} {:>10.1} {:>10.1} {:>10.2} {:>10.0} {good:>8} {:>7}",
        run.rate.unwrap_or(summary.rates.sent),
        summary.rates.achieved,
        summary.throughput.output_tokens_per_s,
        latency.ttft.p50,
        latency.ttft.p99,
        latency.tpot.p99,
        latency.e2e.p99,
        summary.requests.failed
    );
}

/// Several results next to one another, a column each.
pub fn comparison(all: &[Results]) -> String {
    let mut lines = Lines::default();
    lines.row("", &columns(all.iter().map(|one| one.label.chars().take(22).collect())));
    for (name, pick) in COMPARED {
        lines.row(name, &columns(all.iter().map(|one| average(one, *pick))));
    }
    lines.0
}

/// The figures that are compared, by name.
pub const COMPARED: &[Figure] = &[
    ("Requests/s", |summary| summary.throughput.requests_per_s),
    ("Input tokens/s", |summary| summary.throughput.input_tokens_per_s),
    ("Output tokens/s", |summary| summary.throughput.output_tokens_per_s),
    ("TTFT mean, ms", |summary| summary.latency_ms.ttft.mean),
    ("TTFT p50, ms", |summary| summary.latency_ms.ttft.p50),
    ("TTFT p99, ms", |summary| summary.latency_ms.ttft.p99),
    ("TPOT mean, ms", |summary| summary.latency_ms.tpot.mean),
    ("TPOT p99, ms", |summary| summary.latency_ms.tpot.p99),
    ("ITL mean, ms", |summary| summary.latency_ms.itl.mean),
    ("ITL p99, ms", |summary| summary.latency_ms.itl.p99),
    ("E2E mean, ms", |summary| summary.latency_ms.e2e.mean),
    ("E2E p99, ms", |summary| summary.latency_ms.e2e.p99),
    ("Failed", |summary| summary.requests.failed as f64),
];

fn columns(cells: impl Iterator<Item = String>) -> String {
    cells.map(|cell| format!("{cell:>22}")).collect::<Vec<_>>().join(" ")
}

/// The mean of a figure over repeats; of a sweep, the figure at the highest rate that was sustained.
pub fn average(results: &Results, pick: fn(&Summary) -> f64) -> String {
    let sustained = results.sweep.and_then(|finding| finding.sustained_rate);
    let counted = results.runs.iter().filter(|run| sustained.is_none() || run.rate == sustained);
    let values: Vec<f64> = counted.map(|run| pick(&run.summary)).collect();
    format!("{:.2}", crate::stats::mean(&values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slo::{Goodput, Limits};
    use crate::summary::ErrorCount;

    fn filled() -> Summary {
        let mut filled = Summary { duration_s: 2.0, ..Summary::default() };
        filled.requests.completed = 3;
        filled.requests.total = 4;
        filled.requests.failed = 1;
        filled.errors.insert("http_503".into(), ErrorCount { count: 1, example: "HTTP 503: busy".into() });
        filled.rates.offered = Some(2.5);
        filled.latency_ms.ttft =
            Distribution { mean: 12.345, p50: 12.0, p90: 15.0, p99: 20.0, ..Distribution::default() };
        let limits = Limits::parse("ttft:500ms").unwrap();
        filled.goodput = Some(Goodput { limits, requests_per_s: 1.5, attainment: 0.75 });
        filled
    }

    #[test]
    fn the_table_names_every_figure() {
        let text = summary(&filled());
        for expected in [
            "3 of 4, 1 failed",
            "1 × HTTP 503: busy",
            "2.50 req/s offered",
            "     12.35      12.00      15.00      20.00",
            "Goodput (ttft:500ms)               1.50 req/s, 75.0% of requests",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(!text.contains("Cost"));
    }

    #[test]
    fn a_sweep_is_one_line_per_rate() {
        let runs = [1.0, 2.0].map(|rate| Run { rate: Some(rate), summary: filled(), ..Run::default() });
        let text = sweep(&runs, SweepFinding { sustained_rate: Some(1.0), failed_rate: Some(2.0) });
        assert_eq!(text.lines().filter(|line| line.contains("75.0%")).count(), 2);
        assert!(text.contains("Highest sustained rate             1.00 req/s"), "{text}");
    }
}
