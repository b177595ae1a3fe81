//! Measures one server: connects, prepares, warms up, runs and sums up. Used by `run` and `sweep`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::api::EventReader;
use crate::args::{ArrivalKind, CountTokens, RunArgs};
use crate::arrival::Extent;
use crate::client::Client;
use crate::driver::{Counting, Driver, Timing};
use crate::error::Error;
use crate::http::{Endpoint, Pool, read_body, request_headers};
use crate::live::{Finished, Live};
use crate::progress::{Goal, Progress, note};
use crate::record::RequestRecord;
use crate::results::Run;
use crate::summary::{Summary, Terms};
use crate::tokens::TokenCounter;
use crate::vitals::{Monitor, Vitals};
use crate::workload::Session;

/// Warm-up requests that run at the same time.
const WARMUP_CONCURRENCY: usize = 8;
/// Seed of the warm-up. It differs from the seeds of repeats, so that prompts of the measurement are not in the cache.
const WARMUP_SEED: u64 = 0x5741_524d;

/// One server, ready to be measured.
pub struct Bench {
    args: RunArgs,
    pool: Arc<Pool>,
    counter: Option<TokenCounter>,
    /// Model name that requests carry.
    pub model: String,
}

/// A finished run, and whether it was stopped by hand.
pub struct Measured {
    /// The figures of the run.
    pub run: Run,
    /// Stopped before its end.
    pub was_stopped: bool,
}

impl Bench {
    /// Checks the flags, resolves the server and loads the tokenizer. Nothing is generated yet.
    pub async fn prepare(args: RunArgs) -> Result<Self, Error> {
        args.check()?;
        let endpoint = Endpoint::parse(&args.target.url)
            .map_err(|problem| Error::Server(format!("--url: {problem}")))?;
        let headers = request_headers(&endpoint, args.target.api_key.as_deref(), &args.target.headers)?;
        let pool = Arc::new(Pool::new(endpoint, headers, args.target.connect_timeout).await?);
        let model = match &args.target.model {
            Some(model) => model.clone(),
            None => first_model(&pool).await?,
        };
        let counter = match args.input.tokenizer.as_deref() {
            Some("server") => Some(TokenCounter::Server { pool: pool.clone(), model: model.clone() }),
            Some(folder) => Some(TokenCounter::local(folder)?),
            None => None,
        };
        Ok(Self { args, pool, counter, model })
    }

    /// Sends the warm-up requests, the first one alone: if it fails, the benchmark ends.
    pub async fn warm_up(&self) -> Result<(), Error> {
        let count = self.args.load.warmup;
        if count == 0 {
            return Ok(());
        }
        let mut config = self.args.workload(0)?;
        (config.num_sessions, config.seed) = (count, config.seed ^ WARMUP_SEED);
        let sessions = Arc::new(config.build(self.counter.as_ref()).await?);
        let first = self.warm_up_with(&sessions, 1, 1).await?;
        if let Some(failure) = first.into_iter().find_map(|one| one.record.failure) {
            return Err(Error::Server(format!(
                "the first warm-up request failed ({}): {}",
                failure.class, failure.message
            )));
        }
        self.warm_up_with(&sessions, WARMUP_CONCURRENCY, count - 1).await.map(drop)
    }

    async fn warm_up_with(
        &self,
        sessions: &Arc<Vec<Session>>,
        concurrency: usize,
        count: usize,
    ) -> Result<Vec<Finished>, Error> {
        let live = Arc::new(Live::start());
        let timing = Timing::Closed { concurrency, count: Some(count), span: None };
        self.driver()?.run(sessions, timing, &live, std::future::pending()).await;
        Ok(live.take_finished())
    }

    /// Measures once; `rate` replaces the rate of the flags.
    pub async fn measure(&self, repeat: usize, rate: Option<f64>) -> Result<Measured, Error> {
        let mut args = self.args.clone();
        args.load.rate = rate.or(args.load.rate);
        let config = args.workload(repeat)?;
        note("preparing requests…", args.output.quiet);
        let sessions = Arc::new(config.build(self.counter.as_ref()).await?);
        let timing = timing(&args, &sessions, config.seed)?;
        let offered = offered_rate(&args, &timing, &sessions)?;
        let (finished, vitals, num_cancelled, was_stopped) = self.drive(&sessions, timing).await?;
        let records = self.count_tokens(finished).await?;
        let terms = Terms {
            offered,
            limits: args.output.slo,
            price_per_hour: args.output.price_per_hour,
            num_cancelled,
            generator: vitals,
        };
        let run = Run {
            rate,
            seed: config.seed,
            summary: Summary::of(&records, terms),
            requests: records.iter().map(Into::into).collect(),
        };
        Ok(Measured { run, was_stopped })
    }

    async fn drive(
        &self,
        sessions: &Arc<Vec<Session>>,
        timing: Timing,
    ) -> Result<(Vec<Finished>, Vitals, usize, bool), Error> {
        let driver = self.driver()?;
        let live = Arc::new(Live::start());
        let progress = Progress::show(live.clone(), goal(&timing, sessions), self.args.output.quiet);
        let monitor = Monitor::start();
        let mut was_stopped = false;
        let stop = async {
            let _ = tokio::signal::ctrl_c().await;
            was_stopped = true;
        };
        driver.run(sessions, timing, &live, stop).await;
        drop(progress);
        let num_cancelled = live.num_running();
        let finished = live.take_finished();
        let lateness = finished.iter().filter_map(|one| one.record.lateness());
        let vitals = monitor.finish(lateness, self.args.load.threads);
        Ok((finished, vitals, num_cancelled, was_stopped))
    }

    fn driver(&self) -> Result<Arc<Driver>, Error> {
        let target = &self.args.target;
        let by_usage = self.args.output.count_tokens == CountTokens::Auto;
        let counts_here = self.counter.is_some() && self.args.output.count_tokens != CountTokens::Pieces;
        Ok(Arc::new(Driver {
            client: Client {
                pool: self.pool.clone(),
                path: target.path.clone().unwrap_or_else(|| target.api.path().to_owned()),
                reader: EventReader::new(target.api),
                timeout: target.timeout,
            },
            api: target.api,
            sampling: self.args.sampling(&self.model)?,
            think_time: self.args.input.think_time,
            counting: Counting { by_usage, keeps_text: counts_here },
        }))
    }

    /// Counts the tokens of texts that the server did not count, now that it no longer disturbs the measurement.
    async fn count_tokens(&self, finished: Vec<Finished>) -> Result<Vec<RequestRecord>, Error> {
        let mut records = Vec::with_capacity(finished.len());
        for Finished { mut record, output_text } in finished {
            if let (Some(counter), Some(text)) = (&self.counter, output_text) {
                record.output_tokens = counter.count(&text).await?;
            }
            records.push(record);
        }
        Ok(records)
    }
}

/// Requests the server's list of models. A server without a list, such as older ones of TGI, ignores the name it gets.
async fn first_model(pool: &Pool) -> Result<String, Error> {
    const MAX_LIST_BYTES: usize = 4 << 20;
    let answer = pool.get("/v1/models").await.map_err(|failure| Error::Server(failure.message))?;
    let (body, lease) = answer.into_parts();
    let list: Value = serde_json::from_slice(&read_body(body, MAX_LIST_BYTES).await).unwrap_or_default();
    pool.put_back(lease);
    Ok(list.pointer("/data/0/id").and_then(Value::as_str).unwrap_or("tgi").to_owned())
}

fn timing(args: &RunArgs, sessions: &[Session], seed: u64) -> Result<Timing, Error> {
    let load = &args.load;
    let extent = Extent { count: load.max_requests(), span: load.duration };
    let schedule = match (load.kind(), load.shape()?) {
        (ArrivalKind::Closed, _) => {
            return Ok(Timing::Closed {
                concurrency: load.concurrency.unwrap_or(1),
                count: extent.count,
                span: extent.span,
            });
        }
        (_, Some(shape)) => shape.schedule(extent, seed),
        (_, None) => trace_schedule(args, sessions)?,
    };
    Ok(Timing::Open { schedule, max_concurrency: load.max_concurrency })
}

/// The start times in the dataset, divided by the speed.
fn trace_schedule(args: &RunArgs, sessions: &[Session]) -> Result<Vec<Duration>, Error> {
    let times: Option<Vec<Duration>> = sessions.iter().map(|session| session.at).collect();
    let mut times = times.ok_or_else(|| {
        Error::flag("--arrival", "trace", "a line of --dataset has no `timestamp`, in milliseconds")
    })?;
    times.iter_mut().for_each(|at| *at = at.div_f64(args.load.trace_speed));
    times.retain(|at| args.load.duration.is_none_or(|span| *at < span));
    Ok(times)
}

/// Requests per second of the schedule: the rate of the shape, or the mean rate of the trace.
fn offered_rate(args: &RunArgs, timing: &Timing, sessions: &[Session]) -> Result<Option<f64>, Error> {
    let Timing::Open { schedule, .. } = timing else { return Ok(None) };
    let turns: usize = sessions.iter().map(|session| session.turns.len()).sum();
    let turns_per_session = turns as f64 / sessions.len().max(1) as f64;
    let span = schedule.last().map_or(0.0, Duration::as_secs_f64);
    let of_trace = if span > 0.0 { (schedule.len() - 1) as f64 / span } else { schedule.len() as f64 };
    let per_session = args.load.shape()?.map_or(of_trace, |shape| shape.mean_rate());
    Ok(Some(per_session * turns_per_session))
}

fn goal(timing: &Timing, sessions: &[Session]) -> Goal {
    let requests = |count: usize| (0..count).map(|index| sessions[index % sessions.len()].turns.len()).sum();
    match timing {
        Timing::Open { schedule, .. } => Goal { num_requests: Some(requests(schedule.len())), span: None },
        Timing::Closed { count, span, .. } => Goal { num_requests: count.map(requests), span: *span },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::workload::Turn;
    use clap::Parser;

    fn args(flags: &str) -> RunArgs {
        match Cli::parse_from(["penstock-bench", "run"].into_iter().chain(flags.split_whitespace())).command {
            Command::Run(args) => args,
            other => panic!("parsed as {other:?}"),
        }
    }

    fn session(at_ms: Option<u64>, num_turns: usize) -> Session {
        let turn = Turn { messages: Vec::new(), input_tokens: None, max_tokens: 1 };
        Session { at: at_ms.map(Duration::from_millis), turns: vec![turn; num_turns], adapter: None }
    }

    #[test]
    fn a_trace_is_played_at_its_speed_and_within_the_duration() {
        let args = args("--arrival trace --trace-speed 2 --duration 1s");
        let sessions = [0, 500, 1900, 2000].map(|at| session(Some(at), 1));
        assert_eq!(trace_schedule(&args, &sessions).unwrap(), [0, 250, 950].map(Duration::from_millis));
    }

    #[test]
    fn a_trace_needs_times() {
        let problem = trace_schedule(&args("--arrival trace"), &[session(None, 1)]).unwrap_err().to_string();
        assert_eq!(problem, "--arrival trace: a line of --dataset has no `timestamp`, in milliseconds");
    }

    #[test]
    fn the_offered_rate_counts_every_turn() {
        let args = args("--rate 4 -n 3");
        let sessions = [session(None, 3), session(None, 1)];
        let timing = timing(&args, &sessions, 0).unwrap();
        assert_eq!(offered_rate(&args, &timing, &sessions).unwrap(), Some(8.0));
        assert_eq!(goal(&timing, &sessions).num_requests, Some(7));
    }

    #[test]
    fn a_closed_loop_offers_no_rate() {
        let args = args("--concurrency 4 --duration 2s");
        let timing = timing(&args, &[], 0).unwrap();
        assert_eq!(
            timing,
            Timing::Closed { concurrency: 4, count: None, span: Some(Duration::from_secs(2)) }
        );
        assert_eq!(offered_rate(&args, &timing, &[]).unwrap(), None);
    }
}
