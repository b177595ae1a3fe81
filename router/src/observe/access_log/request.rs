//! The line of a request while the request runs: whoever learns a field adds it. The task of the request holds it in a
//! task-local variable, so that functions need not pass it on.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::line::Line;
use super::writer::AccessLog;
use crate::base::caller::Caller;
use crate::base::request_id::RequestId;

/// The path of a request without a route is cut after so many characters.
const MAX_ROUTE_CHARS: usize = 200;
/// Like every other text of a client, the method may be anything.
const MAX_METHOD_CHARS: usize = 20;
/// The error of a request whose client has disconnected, as in the metrics.
const DROPPED: &str = "dropped";

tokio::task_local! {
    static CURRENT: RequestLog;
}

/// The facts about a request that are known when its headers have arrived.
#[derive(Clone, Copy)]
pub struct Arrival<'a> {
    /// Its id.
    pub id: &'a RequestId,
    /// Its method; `gRPC` for a call of the gRPC API.
    pub method: &'a str,
    /// The route, or the path if it has none.
    pub route: &'a str,
    /// The address of the client. It is left out unless the settings ask for it.
    pub address: Option<IpAddr>,
}

/// The tokens and the time that one sequence has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct SequenceUse {
    /// Prompt tokens that were in the cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Time in the queue; `None` if it has not left the queue.
    pub queue: Option<Duration>,
    /// Time from the queue to the first token.
    pub prefill: Option<Duration>,
    /// Time from the arrival of the request to the first token.
    pub first_token: Option<Duration>,
    /// Why it ended; `None` if it was cancelled or has failed.
    pub finish: Option<&'static str>,
}

/// The line of a request, to add fields to. Cheap to clone.
#[derive(Clone)]
pub struct RequestLog(Arc<Mutex<Line>>);

impl RequestLog {
    /// The line of the request whose code runs; `None` if the log is off.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Adds to the line of the request whose code runs, if there is one.
    pub fn with_current(add: impl FnOnce(&Self)) {
        let _ = CURRENT.try_with(add);
    }

    /// The caller was found.
    pub fn on_caller(&self, caller: &Caller) {
        self.update(|line| {
            line.key = caller.key;
            line.tenant = caller.tenant_name.as_deref().map(str::to_owned);
        });
    }

    /// The request has another id than was assumed.
    pub fn on_id(&self, id: &str) {
        self.update(|line| line.request_id = id.to_owned());
    }

    /// A prompt was validated and tokenized.
    pub fn on_prepared(&self, model: &str, prompt_tokens: usize) {
        self.update(|line| {
            line.model.get_or_insert_with(|| model.to_owned());
            *line.prompt_tokens.get_or_insert(0) += prompt_tokens as u64;
        });
    }

    /// A sequence has ended, or was cancelled. The times are those of the slowest sequence; only the time to the first
    /// token is that of the fastest.
    pub fn on_sequence(&self, used: &SequenceUse) {
        self.update(|line| {
            *line.cached_tokens.get_or_insert(0) += u64::from(used.cached_tokens);
            *line.generated_tokens.get_or_insert(0) += u64::from(used.generated_tokens);
            line.queue_ms = line.queue_ms.max(used.queue);
            line.prefill_ms = line.prefill_ms.max(used.prefill);
            line.first_token_ms = line.first_token_ms.into_iter().chain(used.first_token).min();
            line.finish.extend(used.finish);
        });
    }

    /// The request has failed; `kind` is the name of an error's kind. The first call counts.
    pub fn fail(&self, kind: impl Into<Cow<'static, str>>) {
        self.update(|line| {
            line.error.get_or_insert_with(|| kind.into());
        });
    }

    fn update(&self, update: impl FnOnce(&mut Line)) {
        update(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Runs the code of a request, for which [`RequestLog::current`] then returns its line.
pub async fn in_log_scope<F: Future>(line: Option<&OpenLine>, code: F) -> F::Output {
    match line {
        Some(line) => CURRENT.scope(line.request.clone(), code).await,
        None => code.await,
    }
}

/// Writes the line of a request when it is dropped: with the last byte of the response, or when the client has
/// disconnected.
pub struct OpenLine {
    log: AccessLog,
    started: Instant,
    request: RequestLog,
}

impl OpenLine {
    /// Begins the line of a request; `None` if the log is off.
    pub fn begin(log: &AccessLog, arrival: Arrival<'_>) -> Option<Self> {
        let has_addresses = log.has_addresses()?;
        let line = Line {
            request_id: arrival.id.to_string(),
            address: arrival.address.filter(|_| has_addresses),
            method: arrival.method.chars().take(MAX_METHOD_CHARS).collect(),
            route: arrival.route.chars().take(MAX_ROUTE_CHARS).collect(),
            ..Line::default()
        };
        let request = RequestLog(Arc::new(Mutex::new(line)));
        Some(Self { log: log.clone(), started: Instant::now(), request })
    }

    /// The line, to add fields to.
    pub fn request(&self) -> &RequestLog {
        &self.request
    }

    /// The status of the response is known.
    pub fn on_status(&self, status: u16) {
        self.request.update(|line| line.status = Some(status));
    }
}

impl Drop for OpenLine {
    fn drop(&mut self) {
        let mut line = std::mem::take(&mut *self.request.0.lock().unwrap_or_else(PoisonError::into_inner));
        if line.status.is_none() {
            line.error.get_or_insert(DROPPED.into());
        }
        // Several sequences of one prompt may each find it in the cache; responses bound the number likewise.
        line.cached_tokens = line.cached_tokens.min(line.prompt_tokens);
        line.time = Timestamp::now();
        line.total_ms = Some(self.started.elapsed());
        self.log.write(line);
    }
}
