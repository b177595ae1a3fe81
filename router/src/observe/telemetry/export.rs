//! Exports ended spans to the collector. The end of a span puts it into a bounded queue; a task of its own sends the
//! queue in batches. The end of a span never waits for the collector; spans that cannot be sent are dropped and
//! counted.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter as _, SpanProcessor};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::options::OtlpEndpoint;
use crate::observe::metrics::SpanCounters;

/// Spans that wait to be sent: a few megabytes, and some hundred requests.
const MAX_QUEUED: usize = 8192;
/// Spans that are sent together.
const MAX_BATCH: usize = 512;
/// How long spans are gathered for one batch.
const GATHER: Duration = Duration::from_millis(500);
/// How long the collector may take for a batch.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last spans may take at the end; the launcher waits longer for the router.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two warnings, so that an unreachable collector does not fill the log.
const WARN_EVERY: Duration = Duration::from_secs(600);

/// The queues to the collector: one for each process that spans belong to.
pub(super) struct Exports {
    losses: Arc<Losses>,
    closing: CancellationToken,
    senders: TaskTracker,
}

impl Exports {
    pub fn new(counters: SpanCounters) -> Self {
        let losses = Arc::new(Losses { counters, total: AtomicU64::new(0), warned: Mutex::default() });
        Self { losses, closing: CancellationToken::new(), senders: TaskTracker::new() }
    }

    /// Opens a queue for the spans of `resource`. Connects when there is something to send.
    pub fn open(
        &self,
        endpoint: &OtlpEndpoint,
        resource: &Resource,
    ) -> Result<SpanQueue, ExporterBuildError> {
        let mut builder = SpanExporter::builder().with_tonic();
        if endpoint.is_encrypted() {
            builder = builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
        }
        let mut exporter = builder.with_endpoint(endpoint.as_str()).with_timeout(SEND_TIMEOUT).build()?;
        exporter.set_resource(resource);
        let (queue, spans) = mpsc::channel(MAX_QUEUED);
        let (losses, closing) = (Arc::clone(&self.losses), self.closing.clone());
        self.senders.spawn(Sender { spans, exporter, losses, closing }.run());
        Ok(SpanQueue { spans: queue, losses: Arc::clone(&self.losses) })
    }

    /// Sends the spans that are left, for at most [`FLUSH_TIMEOUT`].
    pub async fn flush(&self) {
        self.closing.cancel();
        self.senders.close();
        if timeout(FLUSH_TIMEOUT, self.senders.wait()).await.is_err() {
            warn!("the last traces were not sent: the collector took too long");
        }
    }
}

/// Counts the spans that are not sent, and warns of them.
struct Losses {
    counters: SpanCounters,
    total: AtomicU64,
    warned: Mutex<Option<Instant>>,
}

impl Losses {
    fn queue_is_full(&self) {
        self.counters.queue_full.increment(1);
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    fn sending_failed(&self, num_spans: u64) {
        self.counters.failed.increment(num_spans);
        self.total.fetch_add(num_spans, Ordering::Relaxed);
    }

    fn warn(&self, reason: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            *warned = Some(Instant::now());
            let lost = self.total.load(Ordering::Relaxed);
            warn!(
                reason,
                lost, "traces are dropped, and counted in tgi_trace_spans_dropped; serving goes on"
            );
        }
    }
}

/// The queue into which the end of a span puts it.
pub(super) struct SpanQueue {
    spans: mpsc::Sender<SpanData>,
    losses: Arc<Losses>,
}

impl fmt::Debug for SpanQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanQueue").field("room", &self.spans.capacity()).finish()
    }
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.losses.queue_is_full();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    /// Does nothing: [`Exports::flush`] closes the queue.
    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The task that sends the spans of one queue.
struct Sender {
    spans: mpsc::Receiver<SpanData>,
    exporter: SpanExporter,
    losses: Arc<Losses>,
    closing: CancellationToken,
}

impl Sender {
    async fn run(mut self) {
        loop {
            let batch = self.gather().await;
            if batch.is_empty() {
                return;
            }
            self.send(batch).await;
        }
    }

    /// The next spans; none when the queue is closed and empty.
    async fn gather(&mut self) -> Vec<SpanData> {
        let mut batch = Vec::new();
        tokio::select! {
            _ = self.spans.recv_many(&mut batch, MAX_BATCH) => {}
            () = self.closing.cancelled() => {}
        }
        if (1..MAX_BATCH).contains(&batch.len()) {
            // Not while the server shuts down.
            let _ = timeout(GATHER, self.closing.cancelled()).await;
        }
        if self.closing.is_cancelled() {
            self.spans.close();
        }
        while batch.len() < MAX_BATCH
            && let Ok(span) = self.spans.try_recv()
        {
            batch.push(span);
        }
        batch
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let (num_spans, lost) = (batch.len() as u64, self.losses.total.load(Ordering::Relaxed));
        let reason = match timeout(SEND_TIMEOUT, self.exporter.export(batch)).await {
            Ok(Ok(())) => {
                self.losses.counters.exported.increment(num_spans);
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {} s", SEND_TIMEOUT.as_secs())),
        };
        if reason.is_some() {
            self.losses.sending_failed(num_spans);
        }
        let queue_overran = self.losses.total.load(Ordering::Relaxed) > lost;
        if reason.is_some() || queue_overran {
            self.losses.warn(reason.as_deref().unwrap_or("it is too slow"));
        }
    }
}
