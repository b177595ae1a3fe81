//! Lays the page out: cards and tables for figures, plots over time, over the distribution and over a sweep's rates.

use crate::calendar;
use crate::results::{Results, Row, Run, Variation};
use crate::stats::{Distribution, percentile};
use crate::summary::Summary;
use crate::table::{COMPARED, average};

use super::plot::{Plot, Series, colour, escape, short};

const STYLE: &str = include_str!("style.css");

/// The whole page for one or several results.
pub fn render(all: &[Results]) -> String {
    let title = match all {
        [only] => only.label.clone(),
        several => format!("{} runs side by side", several.len()),
    };
    let body: String = match all {
        [only] => [cards(only), one(only)].concat(),
        several => comparison(several),
    };
    let (style, title) = (STYLE, escape(&title));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title} · penstock-bench</title><style>\n{style}</style></head><body>\n<h1>{title}</h1>\n{body}{}</body></html>\n",
        settings(all)
    )
}

fn one(results: &Results) -> String {
    let all = std::slice::from_ref(results);
    let figures: String = match results.sweep {
        Some(_) => sweep_table(results),
        None => [requests_table(results), latency_tables(results)].concat(),
    };
    [figures, variation(results), errors(results), section("Plots", &plots(all))].concat()
}

fn comparison(all: &[Results]) -> String {
    let names = all
        .iter()
        .enumerate()
        .map(|(index, one)| format!("<th class=\"{}\">{}</th>", colour(index), escape(&one.label)));
    let row = |(name, pick): &(&str, fn(&Summary) -> f64)| {
        let cells: String = all.iter().map(|one| format!("<td>{}</td>", average(one, *pick))).collect();
        format!("<tr><td>{name}</td>{cells}</tr>")
    };
    let rows: String = COMPARED.iter().map(row).collect();
    let table = table(&format!("<th></th>{}", names.collect::<String>()), &rows);
    let errors: String = all.iter().map(errors).collect();
    [section("Figures", &table), errors, section("Plots", &plots(all))].concat()
}

/// Sections under a heading; an empty one is left out.
fn section(heading: &str, content: &str) -> String {
    if content.is_empty() { String::new() } else { format!("<h2>{heading}</h2>\n{content}") }
}

fn table(head: &str, rows: &str) -> String {
    format!("<div class=\"wide\"><table><tr>{head}</tr>{rows}</table></div>\n")
}

/// The figures that people look for first, of the first repeat or of the highest rate that a sweep sustained.
fn cards(results: &Results) -> String {
    let Some(run) = headline(results) else { return String::new() };
    let (throughput, latency) = (&run.summary.throughput, &run.summary.latency_ms);
    let mut cards = vec![
        ("requests/s", short(throughput.requests_per_s)),
        ("output tokens/s", short(throughput.output_tokens_per_s)),
        ("TTFT p50, ms", short(latency.ttft.p50)),
        ("TTFT p99, ms", short(latency.ttft.p99)),
        ("TPOT mean, ms", short(latency.tpot.mean)),
        ("E2E p50, ms", short(latency.e2e.p50)),
    ];
    if let Some(finding) = results.sweep {
        cards.insert(0, ("req/s sustained", finding.sustained_rate.map_or("none".into(), short)));
    }
    if let Some(goodput) = run.summary.goodput {
        cards.push(("good req/s", short(goodput.requests_per_s)));
    }
    if let Some(cost) = run.summary.cost {
        cards.push(("per million output tokens", short(cost.per_million_output_tokens)));
    }
    let card = |(name, value): (&str, String)| {
        format!("<div class=\"card\"><b>{value}</b><span>{name}</span></div>")
    };
    format!("<div class=\"cards\">{}</div>\n", cards.into_iter().map(card).collect::<String>())
}

fn headline(results: &Results) -> Option<&Run> {
    let sustained = results.sweep.and_then(|finding| finding.sustained_rate);
    results.runs.iter().find(|run| sustained.is_some() && run.rate == sustained).or(results.runs.first())
}

/// How many requests there were and at which rates, a row per repeat.
fn requests_table(results: &Results) -> String {
    let row = |(index, run): (usize, &Run)| {
        let (requests, rates) = (&run.summary.requests, &run.summary.rates);
        let cells = [
            requests.completed.to_string(),
            requests.failed.to_string(),
            format!("{:.2}", run.summary.duration_s),
            format!("{:.1}", requests.mean_concurrency),
            rates.offered.map_or("–".into(), |rate| format!("{rate:.2}")),
            format!("{:.2}", rates.sent),
            format!("{:.2}", rates.achieved),
            format!("{:.1}", run.summary.throughput.input_tokens_per_s),
        ];
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        format!("<tr><td>{}</td>{cells}</tr>", index + 1)
    };
    let head = "<th>Repeat</th><th>completed</th><th>failed</th><th>seconds</th><th>mean concurrency</th>\
        <th>offered req/s</th><th>sent</th><th>achieved</th><th>input tok/s</th>";
    section("Requests", &table(head, &results.runs.iter().enumerate().map(row).collect::<String>()))
}

fn latency_tables(results: &Results) -> String {
    let several = results.runs.len() > 1;
    let heading = |index: usize| {
        if several { format!("Latency of repeat {}, ms", index + 1) } else { "Latency, ms".into() }
    };
    let tables = results.runs.iter().enumerate();
    tables.map(|(index, run)| section(&heading(index), &latency_table(&run.summary))).collect()
}

fn latency_table(summary: &Summary) -> String {
    let latency = &summary.latency_ms;
    let rows = [
        ("Time to first token (TTFT)", latency.ttft),
        ("Time per output token (TPOT)", latency.tpot),
        ("Inter-token latency (ITL)", latency.itl),
        ("End to end (E2E)", latency.e2e),
    ];
    let row = |(name, Distribution { mean, p50, p90, p95, p99, max, .. }): (&str, Distribution)| {
        let cells: String =
            [mean, p50, p90, p95, p99, max].map(|value| format!("<td>{value:.2}</td>")).concat();
        format!("<tr><td>{name}</td>{cells}</tr>")
    };
    let head = "<th></th><th>mean</th><th>p50</th><th>p90</th><th>p95</th><th>p99</th><th>max</th>";
    let warning =
        summary.generator.warning().map(|text| format!("<p class=\"warning\">{}</p>", escape(&text)));
    [table(head, &rows.map(row).concat()), warning.unwrap_or_default()].concat()
}

fn variation(results: &Results) -> String {
    let row = |one: &Variation| {
        format!(
            "<tr><td>{}</td><td>{:.2}</td><td>{:.2}%</td></tr>",
            one.metric,
            one.mean,
            one.coefficient * 100.0
        )
    };
    let rows: String = results.variation.iter().map(row).collect();
    let table = if rows.is_empty() { rows } else { table("<th></th><th>mean</th><th>variation</th>", &rows) };
    section("Over repeats", &table)
}

fn sweep_table(results: &Results) -> String {
    let row = |run: &Run| {
        let summary = &run.summary;
        let good = summary.goodput.map_or("–".into(), |good| format!("{:.1}%", good.attainment * 100.0));
        let cells = [
            format!("{:.2}", summary.rates.achieved),
            format!("{:.1}", summary.throughput.output_tokens_per_s),
            format!("{:.1}", summary.latency_ms.ttft.p50),
            format!("{:.1}", summary.latency_ms.ttft.p99),
            format!("{:.2}", summary.latency_ms.tpot.p99),
            good,
            summary.requests.failed.to_string(),
        ];
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        format!("<tr><td>{:.2}</td>{cells}</tr>", run.rate.unwrap_or_default())
    };
    let head = "<th>Offered req/s</th><th>achieved</th><th>output tok/s</th><th>TTFT p50, ms</th><th>TTFT p99, ms</th>\
        <th>TPOT p99, ms</th><th>good</th><th>failed</th>";
    section("Rates", &table(head, &results.runs.iter().map(row).collect::<String>()))
}

fn errors(results: &Results) -> String {
    let mut rows = String::new();
    for (class, errors) in results.runs.iter().flat_map(|run| &run.summary.errors) {
        let example = escape(&errors.example);
        rows +=
            &format!("<tr><td>{class}</td><td>{}</td><td class=\"text\">{example}</td></tr>", errors.count);
    }
    if rows.is_empty() {
        return rows;
    }
    section(
        &format!("Errors of {}", escape(&results.label)),
        &table("<th>class</th><th>count</th><th>example</th>", &rows),
    )
}

fn plots(all: &[Results]) -> String {
    let over_rates = [
        sweep_plot(all, "TTFT p99 against throughput", "ms", |summary| summary.latency_ms.ttft.p99),
        sweep_plot(all, "TPOT p99 against throughput", "ms", |summary| summary.latency_ms.tpot.p99),
    ];
    let of_requests = [
        time_plot(all, "Time to first token over the run", |row| row.ttft_ms),
        time_plot(all, "End-to-end latency over the run", |row| Some(row.e2e_ms)),
        distribution_plot(all, "Distribution of time to first token", |row| row.ttft_ms),
        distribution_plot(all, "Distribution of time per output token", |row| row.tpot_ms),
        distribution_plot(all, "Distribution of end-to-end latency", |row| Some(row.e2e_ms)),
    ];
    let throughput = throughput_plot(all);
    let drawn: String =
        over_rates.iter().chain(&of_requests).chain([&throughput]).map(Plot::render).collect();
    format!("<div class=\"plots\">{drawn}</div>\n")
}

fn plot(title: &str, x_name: &str, y_name: &str, series: Vec<Series>) -> Plot {
    Plot { title: title.into(), x_name: x_name.into(), y_name: y_name.into(), series }
}

/// Latency over output throughput, a point per rate; only sweeps have it.
fn sweep_plot(all: &[Results], title: &str, unit: &str, pick: fn(&Summary) -> f64) -> Plot {
    let sweeps = all.iter().filter(|one| one.runs.iter().any(|run| run.rate.is_some()));
    let series = sweeps.map(|one| Series {
        name: one.label.clone(),
        points: one
            .runs
            .iter()
            .map(|run| (run.summary.throughput.output_tokens_per_s, pick(&run.summary)))
            .collect(),
        is_line: true,
    });
    plot(title, "output tokens/s", unit, series.collect())
}

/// One series per repeat or rate of a single result, one per result of several.
fn request_series(all: &[Results], points: impl Fn(&Run) -> Vec<(f64, f64)>, is_line: bool) -> Vec<Series> {
    let name = |one: &Results, index: usize, run: &Run| match run.rate {
        Some(rate) => format!("{} req/s", short(rate)),
        None if one.runs.len() > 1 => format!("repeat {}", index + 1),
        None => one.label.clone(),
    };
    match all {
        [one] => {
            let runs = one.runs.iter().enumerate();
            runs.map(|(index, run)| Series { name: name(one, index, run), points: points(run), is_line })
                .collect()
        }
        several => {
            let heads = several.iter().filter_map(|one| Some((one, headline(one)?)));
            heads.map(|(one, run)| Series { name: one.label.clone(), points: points(run), is_line }).collect()
        }
    }
}

fn time_plot(all: &[Results], title: &str, pick: fn(&Row) -> Option<f64>) -> Plot {
    let points = |run: &Run| good(run).filter_map(|row| Some((row.start_s, pick(row)?))).collect();
    plot(title, "sent at, s", "ms", request_series(all, points, false))
}

/// Share of requests at or below each latency.
fn distribution_plot(all: &[Results], title: &str, pick: fn(&Row) -> Option<f64>) -> Plot {
    let points = |run: &Run| {
        let mut values: Vec<f64> = good(run).filter_map(pick).collect();
        values.sort_by(f64::total_cmp);
        let percents = if values.is_empty() { 0..=0 } else { 0..=100 };
        percents.map(|percent| (percentile(&values, f64::from(percent)), f64::from(percent))).collect()
    };
    plot(title, "ms", "% of requests", request_series(all, points, true))
}

/// Generated tokens per second over the run, each request's spread evenly from its first piece to its end.
fn throughput_plot(all: &[Results]) -> Plot {
    let points = |run: &Run| {
        let width = (run.summary.duration_s / SPANS as f64).max(1e-9);
        let mut tokens = [0.0; SPANS];
        good(run).for_each(|row| spread_tokens(&mut tokens, width, row));
        tokens.iter().enumerate().map(|(index, sum)| ((index as f64 + 0.5) * width, sum / width)).collect()
    };
    plot("Output tokens over the run", "s", "tokens/s", request_series(all, points, true))
}

/// Parts of a run that the throughput plot tells apart.
const SPANS: usize = 40;

fn spread_tokens(tokens: &mut [f64; SPANS], width: f64, row: &Row) {
    let first = row.start_s + row.ttft_ms.unwrap_or(row.e2e_ms) / 1e3;
    let last = row.start_s + row.e2e_ms / 1e3;
    let (from, to) = ((first / width) as usize, ((last / width) as usize).min(SPANS - 1));
    for (index, sum) in tokens.iter_mut().enumerate().take(to + 1).skip(from) {
        let (start, end) = (index as f64 * width, (index + 1) as f64 * width);
        let overlap = last.min(end) - first.max(start);
        let share = if last > first { overlap / (last - first) } else { 1.0 };
        *sum += f64::from(row.output_tokens) * share;
    }
}

fn good(run: &Run) -> impl Iterator<Item = &Row> {
    run.requests.iter().filter(|row| row.error.is_none())
}

fn settings(all: &[Results]) -> String {
    let shown = |one: &Results| {
        let fields = serde_json::to_value(&one.setup).unwrap_or_default();
        let given = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        let listed: Vec<String> =
            given.map(|(name, value)| format!("{name} {}", value.to_string().trim_matches('"'))).collect();
        let version = format!("penstock-bench {} · {}", one.version, calendar::format(one.created_unix_s));
        format!(
            "<p class=\"meta\"><b>{}</b>: {} · {version}</p>",
            escape(&one.label),
            escape(&listed.join(" · "))
        )
    };
    section("Settings", &all.iter().map(shown).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{FORMAT, Setup, SweepFinding};

    fn row(start_s: f64) -> Row {
        Row {
            start_s,
            ttft_ms: Some(10.0),
            tpot_ms: Some(2.0),
            e2e_ms: 50.0,
            input_tokens: 5,
            output_tokens: 20,
            error: None,
        }
    }

    fn results(label: &str) -> Results {
        let mut run = Run { requests: vec![row(0.0), row(1.0)], ..Run::default() };
        run.summary.duration_s = 2.0;
        run.summary.latency_ms.ttft.p99 = 10.0;
        Results {
            format: FORMAT.into(),
            label: label.into(),
            version: "0".into(),
            created_unix_s: 0,
            setup: Setup::default(),
            runs: vec![run],
            variation: Vec::new(),
            sweep: None,
        }
    }

    fn sweep() -> Results {
        let mut sweep = results("swept");
        sweep.runs = vec![sweep.runs[0].clone(); 2];
        (sweep.runs[0].rate, sweep.runs[1].rate) = (Some(1.0), Some(2.0));
        sweep.sweep = Some(SweepFinding { sustained_rate: Some(2.0), failed_rate: None });
        sweep
    }

    #[test]
    fn one_run_has_cards_a_table_and_plots() {
        let page = render(&[results("mine")]);
        assert_eq!(page.matches("<figure>").count(), 6);
        assert!(page.contains("<h1>mine</h1>") && page.contains("Time to first token (TTFT)"));
    }

    #[test]
    fn the_page_fetches_and_runs_nothing_and_escapes_what_it_shows() {
        let page = render(&[results("<script>alert(1)</script>")]);
        for forbidden in ["<script", "http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn a_sweep_is_plotted_against_throughput() {
        let page = render(&[sweep()]);
        assert!(page.contains("TTFT p99 against throughput") && page.contains("req/s sustained"));
        assert!(page.contains("Offered req/s"));
    }

    #[test]
    fn several_results_share_a_table_and_their_plots() {
        let page = render(&[results("left"), results("right")]);
        assert!(page.contains("2 runs side by side"));
        assert!(page.contains("<th class=\"c0\">left</th><th class=\"c1\">right</th>"));
        assert!(page.contains("<span class=\"c1\">right</span>"));
    }

    #[test]
    fn tokens_are_spread_over_the_time_of_generation() {
        let mut tokens = [0.0; SPANS];
        let row =
            Row { start_s: 1.0, ttft_ms: Some(500.0), e2e_ms: 2500.0, output_tokens: 8, ..Row::default() };
        spread_tokens(&mut tokens, 1.0, &row); // from 1.5 s to 3.5 s: a quarter, a half, a quarter
        assert_eq!(tokens[..5], [0.0, 2.0, 4.0, 2.0, 0.0]);
        let at_once =
            Row { start_s: 1.0, ttft_ms: Some(0.0), e2e_ms: 0.0, output_tokens: 8, ..Row::default() };
        spread_tokens(&mut tokens, 1.0, &at_once);
        assert_eq!(tokens[1], 10.0);
    }

    #[test]
    fn failed_requests_are_listed_and_not_plotted() {
        let mut failed = results("mine");
        failed.runs[0].requests[1].error = Some("cut_off".into());
        let errors = &mut failed.runs[0].summary.errors;
        errors.insert("cut_off".into(), crate::summary::ErrorCount { count: 1, example: "<b>".into() });
        let page = render(&[failed]);
        assert!(page.contains("<td>cut_off</td><td>1</td><td class=\"text\">&lt;b&gt;</td>"));
        let plot = page.split("<figure>").nth(1).expect("a plot");
        assert_eq!(plot.matches("<circle").count(), 1);
    }
}
