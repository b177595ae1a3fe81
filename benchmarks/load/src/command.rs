//! The commands `run`, `sweep` and `report`, from their flags to their exit codes.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::args::{ArrivalKind, Cli, Command, ReportArgs, RunArgs, SweepArgs};
use crate::bench::{Bench, Measured};
use crate::error::Error;
use crate::report as html;
use crate::results::{Results, Run, SweepFinding, write_file};
use crate::search::Search;
use crate::slo::Goodput;
use crate::{table, vitals};

/// The exit code of a run that was stopped by hand, as shells use it.
const STOPPED: u8 = 130;
/// How long a sweep measures each rate, unless a flag says otherwise.
const RATE_DURATION: Duration = Duration::from_secs(30);
/// A rate counts as sustained only if this share of what was sent is also completed.
const KEPT_UP: f64 = 0.9;

/// The whole command, from the arguments of the process to its exit code. Errors are one line on standard error.
pub fn main() -> ExitCode {
    match run(Cli::parse(), &mut std::io::stdout()) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "penstock-bench: {error}"); // nowhere left to complain
            ExitCode::from(2)
        }
    }
}

/// Runs the command and writes its tables to `out`. The exit code is a failure if no request succeeded.
pub fn run(cli: Cli, out: &mut dyn Write) -> Result<ExitCode, Error> {
    match cli.command {
        Command::Run(args) => runtime(args.load.threads)?.block_on(run_once(args, out)),
        Command::Sweep(args) => runtime(args.run.load.threads)?.block_on(sweep(args, out)),
        Command::Report(args) => report(&args, out),
    }
}

/// By default one thread: it has the steadiest clock and suffices for thousands of streams.
fn runtime(threads: usize) -> Result<tokio::runtime::Runtime, Error> {
    vitals::raise_open_file_limit();
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    Ok(builder.worker_threads(threads).enable_all().build()?)
}

async fn run_once(args: RunArgs, out: &mut dyn Write) -> Result<ExitCode, Error> {
    let bench = Bench::prepare(args.clone()).await?;
    bench.warm_up().await?;
    let mut runs = Vec::new();
    for repeat in 0..args.load.repeats {
        let Measured { run, was_stopped } = bench.measure(repeat, None).await?;
        runs.push(run);
        if was_stopped {
            publish(&args, out, &Results::new(&args, &bench.model, runs))?;
            return Ok(ExitCode::from(STOPPED));
        }
    }
    let has_success = runs.iter().any(|run| run.summary.requests.completed > 0);
    publish(&args, out, &Results::new(&args, &bench.model, runs))?;
    Ok(if has_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn sweep(args: SweepArgs, out: &mut dyn Write) -> Result<ExitCode, Error> {
    let mut run_args = args.run.clone();
    run_args.load.arrival = Some(swept_arrival(&run_args)?);
    run_args.load.rate = Some(args.from);
    if run_args.load.num_requests.is_none() {
        run_args.load.duration.get_or_insert(RATE_DURATION);
    }
    let bench = Bench::prepare(run_args.clone()).await?;
    bench.warm_up().await?;
    let (mut runs, finding) = if args.rates.is_empty() {
        search(&args, &bench).await?
    } else {
        measure_rates(&args, &bench).await?
    };
    runs.sort_by(|one, other| one.rate.partial_cmp(&other.rate).unwrap_or(std::cmp::Ordering::Equal));
    run_args.load.rate = None;
    let mut results = Results::new(&run_args, &bench.model, runs);
    results.variation.clear(); // these are rates, not repeats
    results.sweep = Some(finding);
    publish(&run_args, out, &results)?;
    Ok(if finding.sustained_rate.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A sweep sets the rate, so the arrivals must have one.
fn swept_arrival(args: &RunArgs) -> Result<ArrivalKind, Error> {
    if let Some(rate) = args.load.rate {
        return Err(Error::flag("--rate", rate, "a sweep chooses the rates; use --from, --to or --rates"));
    }
    if args.load.repeats > 1 {
        return Err(Error::flag(
            "--repeats",
            args.load.repeats,
            "a sweep measures each rate once; repeat with `run`",
        ));
    }
    match args.load.arrival.unwrap_or(ArrivalKind::Poisson) {
        kind @ (ArrivalKind::Constant | ArrivalKind::Poisson | ArrivalKind::Gamma) => Ok(kind),
        other => Err(Error::flag("--arrival", other.name(), "a sweep needs constant, poisson or gamma")),
    }
}

async fn search(args: &SweepArgs, bench: &Bench) -> Result<(Vec<Run>, SweepFinding), Error> {
    let mut search = Search::new(args.from, args.to, args.precision);
    let mut runs = Vec::new();
    while let Some(rate) = search.next_rate() {
        let Measured { run, was_stopped } = measure_rate(args, bench, rate, runs.len()).await?;
        if was_stopped {
            break;
        }
        search.record(rate, is_sustained(&run, args.attainment));
        runs.push(run);
    }
    Ok((runs, SweepFinding { sustained_rate: search.held(), failed_rate: search.failed() }))
}

async fn measure_rates(args: &SweepArgs, bench: &Bench) -> Result<(Vec<Run>, SweepFinding), Error> {
    let mut search = Search::new(args.from, args.to, args.precision);
    let mut runs = Vec::new();
    for rate in args.rates.iter().copied() {
        let Measured { run, was_stopped } = measure_rate(args, bench, rate, runs.len()).await?;
        if was_stopped {
            break;
        }
        search.record(rate, is_sustained(&run, args.attainment));
        runs.push(run);
    }
    Ok((runs, SweepFinding { sustained_rate: search.held(), failed_rate: search.failed() }))
}

async fn measure_rate(args: &SweepArgs, bench: &Bench, rate: f64, index: usize) -> Result<Measured, Error> {
    let measured = bench.measure(index, Some(rate)).await?;
    if !args.run.output.quiet {
        let summary = &measured.run.summary;
        let verdict =
            if is_sustained(&measured.run, args.attainment) { "sustained" } else { "not sustained" };
        let line = format!("{rate:.2} req/s: {verdict}, {:.2} achieved", summary.rates.achieved);
        writeln!(std::io::stderr(), "{line}")?;
    }
    Ok(measured)
}

/// Whether the server kept up, and enough requests met the limits or, without limits, none failed.
fn is_sustained(run: &Run, attainment: f64) -> bool {
    let summary = &run.summary;
    let good_share = match summary.goodput {
        Some(Goodput { attainment, .. }) => attainment,
        None => summary.requests.completed as f64 / (summary.requests.total as f64).max(1.0),
    };
    good_share >= attainment && summary.rates.achieved >= KEPT_UP * summary.rates.sent
}

fn publish(args: &RunArgs, out: &mut dyn Write, results: &Results) -> Result<(), Error> {
    out.write_all(table::results(results).as_bytes())?;
    if let Some(path) = &args.output.output {
        results.save(path)?;
    }
    if let Some(path) = &args.output.html {
        write_file(path, &html::render(std::slice::from_ref(results)))?;
    }
    Ok(())
}

fn report(args: &ReportArgs, out: &mut dyn Write) -> Result<ExitCode, Error> {
    let all = args.results.iter().map(|path| Results::load(path)).collect::<Result<Vec<_>, _>>()?;
    out.write_all(table::comparison(&all).as_bytes())?;
    if let Some(path) = &args.html {
        write_file(path, &html::render(&all))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slo::Limits;

    fn run(completed: usize, sent: f64, achieved: f64) -> Run {
        let mut run = Run::default();
        (run.summary.requests.total, run.summary.requests.completed) = (100, completed);
        (run.summary.rates.sent, run.summary.rates.achieved) = (sent, achieved);
        run
    }

    #[test]
    fn a_rate_is_sustained_if_the_server_kept_up_without_errors() {
        assert!(is_sustained(&run(100, 10.0, 9.5), 0.95));
        assert!(!is_sustained(&run(100, 10.0, 8.0), 0.95));
        assert!(!is_sustained(&run(90, 10.0, 10.0), 0.95));
    }

    #[test]
    fn limits_decide_where_they_are_given() {
        let good = |attainment| Some(Goodput { limits: Limits::default(), requests_per_s: 1.0, attainment });
        let mut measured = run(100, 10.0, 10.0);
        measured.summary.goodput = good(0.96);
        assert!(is_sustained(&measured, 0.95));
        measured.summary.goodput = good(0.94);
        assert!(!is_sustained(&measured, 0.95));
    }

    #[test]
    fn a_sweep_refuses_a_rate_and_arrivals_without_one() {
        let args =
            |flags: &str| match Cli::parse_from(["b", "run"].into_iter().chain(flags.split(' '))).command {
                Command::Run(args) => args,
                other => panic!("parsed as {other:?}"),
            };
        assert!(
            swept_arrival(&args("--rate 2")).unwrap_err().to_string().contains("--from, --to or --rates")
        );
        assert!(swept_arrival(&args("--arrival ramp")).unwrap_err().to_string().contains("--arrival ramp"));
        assert_eq!(swept_arrival(&args("--seed 1")).unwrap(), ArrivalKind::Poisson);
    }
}
