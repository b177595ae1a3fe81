//! Sends the requests of one run at their times and collects their records.
//!
//! An open loop follows its schedule regardless of the server; a closed loop sends when a response has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::api::{Api, Asked, Sampling, collected_text, request_body};
use crate::client::{Client, Exchange};
use crate::live::{Finished, Live};
use crate::record::RequestRecord;
use crate::workload::{Message, Session, Turn};

/// When the sessions of a run start.
#[derive(Clone, Debug, PartialEq)]
pub enum Timing {
    /// At these offsets, in order.
    Open {
        /// Start of each session.
        schedule: Vec<Duration>,
        /// Most requests at a time.
        max_concurrency: Option<usize>,
    },
    /// A fixed number at a time; each starts when another has ended.
    Closed {
        /// Sessions kept running.
        concurrency: usize,
        /// Most sessions.
        count: Option<usize>,
        /// No session starts later.
        span: Option<Duration>,
    },
}

/// How tokens of a finished request are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counting {
    /// Use the server's usage report.
    pub by_usage: bool,
    /// Keep texts that the server did not count, to count them after the run.
    pub keeps_text: bool,
}

/// Settings that all requests of a run share.
#[derive(Debug)]
pub struct Driver {
    /// The server.
    pub client: Client,
    /// Its API.
    pub api: Api,
    /// Sampling and length of every request.
    pub sampling: Sampling,
    /// Pause between the turns of a session.
    pub think_time: Duration,
    /// How tokens are counted.
    pub counting: Counting,
}

impl Driver {
    /// Runs until every session ended or `stop` resolves; requests that still run then are dropped, which cancels them.
    pub async fn run(
        self: &Arc<Self>,
        sessions: &Arc<Vec<Session>>,
        timing: Timing,
        live: &Arc<Live>,
        stop: impl Future<Output = ()>,
    ) {
        let mut tasks = JoinSet::new();
        tokio::select! {
            () = stop => {}
            () = self.send_all(sessions, timing, live, &mut tasks) => {}
        }
        tasks.shutdown().await;
    }

    async fn send_all(
        self: &Arc<Self>,
        sessions: &Arc<Vec<Session>>,
        timing: Timing,
        live: &Arc<Live>,
        tasks: &mut JoinSet<()>,
    ) {
        match timing {
            Timing::Open { schedule, max_concurrency } => {
                self.send_on_schedule(sessions, &schedule, max_concurrency, live, tasks).await;
            }
            Timing::Closed { concurrency, count, span } => {
                self.keep_running(sessions, concurrency, count.unwrap_or(usize::MAX), span, live, tasks);
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    async fn send_on_schedule(
        self: &Arc<Self>,
        sessions: &Arc<Vec<Session>>,
        schedule: &[Duration],
        max_concurrency: Option<usize>,
        live: &Arc<Live>,
        tasks: &mut JoinSet<()>,
    ) {
        let permits = Arc::new(Semaphore::new(max_concurrency.unwrap_or(Semaphore::MAX_PERMITS)));
        for (index, at) in schedule.iter().copied().enumerate() {
            tokio::time::sleep_until((live.started() + at).into()).await;
            let (driver, sessions, live, permits) =
                (self.clone(), sessions.clone(), live.clone(), permits.clone());
            tasks.spawn(async move {
                let _permit = permits.acquire_owned().await;
                driver.run_session(&sessions[index % sessions.len()], Some(at), &live).await;
            });
        }
    }

    fn keep_running(
        self: &Arc<Self>,
        sessions: &Arc<Vec<Session>>,
        concurrency: usize,
        count: usize,
        span: Option<Duration>,
        live: &Arc<Live>,
        tasks: &mut JoinSet<()>,
    ) {
        let next = Arc::new(AtomicUsize::new(0));
        for _ in 0..concurrency.min(count) {
            let (driver, sessions, live, next) = (self.clone(), sessions.clone(), live.clone(), next.clone());
            tasks.spawn(async move {
                while span.is_none_or(|span| live.started().elapsed() < span) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    driver.run_session(&sessions[index % sessions.len()], None, &live).await;
                }
            });
        }
    }

    /// Sends one turn after the other, with the replies to earlier ones; a failed turn ends the session.
    pub async fn run_session(&self, session: &Session, scheduled: Option<Duration>, live: &Live) {
        let mut history = History::default();
        for (index, turn) in session.turns.iter().enumerate() {
            if index > 0 {
                tokio::time::sleep(self.think_time).await;
            }
            let is_last = index + 1 == session.turns.len();
            let scheduled = scheduled.filter(|_| index == 0);
            let body = self.body(turn, &history, session.adapter.as_deref());
            if !self.run_turn(turn, body, &mut history, scheduled, is_last, live).await {
                return;
            }
        }
    }

    async fn run_turn(
        &self,
        turn: &Turn,
        body: Bytes,
        history: &mut History,
        scheduled: Option<Duration>,
        is_last: bool,
        live: &Live,
    ) -> bool {
        let start = live.started().elapsed();
        live.add_started();
        let exchange = self.client.generate(body, turn.max_tokens, live).await;
        let record = self.record(turn, history, scheduled, start, &exchange);
        if !is_last {
            history.add(turn, &exchange, record.output_tokens);
        }
        let continues = record.is_complete();
        live.add_finished(self.finished(record, exchange));
        continues
    }

    fn body(&self, turn: &Turn, history: &History, adapter: Option<&str>) -> Bytes {
        let messages = [history.messages.as_slice(), &turn.messages].concat();
        let asked = Asked { messages: &messages, max_tokens: turn.max_tokens, adapter };
        request_body(self.api, &self.sampling, asked).into()
    }

    fn record(
        &self,
        turn: &Turn,
        history: &History,
        scheduled: Option<Duration>,
        start: Duration,
        exchange: &Exchange,
    ) -> RequestRecord {
        let usage = exchange.usage();
        let output_tokens = usage.output_tokens.filter(|_| self.counting.by_usage);
        RequestRecord {
            scheduled,
            start,
            first_token: exchange.first_token,
            last_token: exchange.last_token,
            end: exchange.end,
            gaps_us: Vec::new(),
            input_tokens: usage.input_tokens.unwrap_or(history.tokens + turn.input_tokens.unwrap_or(0)),
            output_tokens: output_tokens.unwrap_or(exchange.num_pieces()),
            cached_tokens: usage.cached_tokens.unwrap_or(0),
            failure: exchange.failure.clone(),
        }
    }

    /// Turns the exchange into a record, moving its large parts.
    fn finished(&self, mut record: RequestRecord, exchange: Exchange) -> Finished {
        let is_counted = self.counting.by_usage && exchange.usage().output_tokens.is_some();
        let output_text =
            (self.counting.keeps_text && !is_counted).then(|| collected_text(&exchange.escaped_text));
        record.gaps_us = exchange.gaps_us;
        Finished { record, output_text }
    }
}

/// The messages of a session so far.
#[derive(Default)]
struct History {
    messages: Vec<Message>,
    tokens: u32,
}

impl History {
    fn add(&mut self, turn: &Turn, exchange: &Exchange, output_tokens: u32) {
        self.messages.extend_from_slice(&turn.messages);
        self.messages.push(Message::assistant(collected_text(&exchange.escaped_text)));
        self.tokens += turn.input_tokens.unwrap_or(0) + output_tokens;
    }
}
