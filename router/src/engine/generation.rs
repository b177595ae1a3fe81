//! How a handler generates: it submits a [`NewRequest`] to the [`EngineHandle`], reads [`EventKind`]s from the
//! [`Generation`] it returns, and drops that to cancel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_scheduler::{EventKind, NewRequest, Refused, RequestId, TopToken};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::base::role::Role;
use crate::engine::EngineFacts;
use crate::engine::adapters::{AdapterLease, AdapterUse};
use crate::engine::arrivals::{Arrivals, Arriving};
use crate::engine::changes::{Change, ChangeReply};
use crate::engine::condition::{AwakeBytes, Wanted};
use crate::engine::membership::Members;
use crate::observe::telemetry::{RequestTrace, SequenceTrace};

/// The engine loop turns twenty times a second at least; this long without a turn it hangs.
const MAX_SILENCE: Duration = Duration::from_secs(3);
/// Memory that the unread events of one generation may take; beyond it the request fails, because its client reads too slowly.
const MAX_UNREAD_BYTES: usize = 32 << 10;

/// Messages to the engine loop.
pub(crate) enum Command {
    Submit {
        request: Box<NewRequest>,
        events: mpsc::Sender<EventKind>,
        trace: Option<Box<SequenceTrace>>,
        arriving: Option<Arriving>,
        reply: oneshot::Sender<Result<RequestId, Refused>>,
    },
    Cancel(RequestId),
    Members(Members),
    Change(Change, Option<ChangeReply>),
    /// There is no room for shards that sleep: calls that need them awake are to fail.
    RefuseDeferred,
    /// Requests that have begun must fail, because weights are replaced.
    AbortBegun,
}

/// The status of the shards, as the engine loop last knew it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineStatus {
    /// Steps are being answered.
    Ready,
    /// The shards sleep. Requests are kept.
    Asleep,
    /// The shards fall asleep or wake up. Requests are kept.
    Changing,
    /// The shards are gone or do not answer, and are waited for; the text says what was seen. Requests are kept.
    Restarting(String),
    /// The shards are lost for good; the text says why.
    Lost(String),
}

impl EngineStatus {
    /// Why steps are not answered; `None` if they are.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Self::Ready | Self::Asleep | Self::Changing => None,
            Self::Restarting(reason) | Self::Lost(reason) => Some(reason),
        }
    }

    /// The status of several replicas together, which is the best of theirs: ready if one is, and lost only if all are.
    pub(crate) fn of_all<'a>(replicas: impl Iterator<Item = &'a Self>) -> Self {
        let best = replicas.min_by_key(|status| match status {
            Self::Ready => 0,
            Self::Changing => 1,
            Self::Asleep => 2,
            Self::Restarting(_) => 3,
            Self::Lost(_) => 4,
        });
        best.cloned().unwrap_or_else(|| Self::Lost("there are no shards".to_owned()))
    }
}

/// The status of one replica, as the engine loop last knew it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplicaStatus {
    pub replica: usize,
    pub takes_requests: bool,
    pub role: Role,
    pub awake_bytes: AwakeBytes,
    pub status: EngineStatus,
}

/// Shows that the engine loop turns.
#[derive(Debug)]
pub(crate) struct Pulse {
    started: Instant,
    last_ms: AtomicU64,
}

impl Pulse {
    pub fn new() -> Self {
        Self { started: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    /// The loop has made a turn.
    pub fn beat(&self) {
        self.last_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn silence(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(self.last_ms.load(Ordering::Relaxed)))
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// A cheap handle on the engine loop.
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) status: watch::Receiver<Vec<ReplicaStatus>>,
    pub(crate) facts: Arc<EngineFacts>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) wanted: Wanted,
    pub(crate) arrivals: Arrivals,
}

impl EngineHandle {
    /// The facts that the shards of one replica reported. Other replicas may have other numbers of blocks.
    pub fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    /// Whether steps are being answered now, by any replica that takes requests.
    pub fn status(&self) -> EngineStatus {
        let all = self.status.borrow();
        EngineStatus::of_all(all.iter().filter(|one| one.takes_requests).map(|one| &one.status))
    }

    /// The condition that the shards are to have; they have it unless they are just changing.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Where requests are counted that are about to come.
    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// How many replicas there are, ready or not.
    pub fn num_replicas(&self) -> usize {
        self.status.borrow().len()
    }

    /// The role of each replica, in the order of their numbers.
    pub fn roles(&self) -> Vec<Role> {
        self.status.borrow().iter().map(|replica| replica.role).collect()
    }

    /// The memory needed to wake up, over all shards of all replicas. A replica that was never connected counts as the
    /// others.
    pub fn awake_bytes(&self) -> AwakeBytes {
        let all = self.status.borrow();
        let known: Vec<_> =
            all.iter().map(|one| one.awake_bytes).filter(|it| *it != AwakeBytes::default()).collect();
        let unknown = (all.len() - known.len()) as u64;
        let like_others = known.first().map(|first| first.times(unknown));
        known.into_iter().chain(like_others).sum()
    }

    /// Whether the engine loop turns, whatever the shards do.
    pub fn is_live(&self) -> bool {
        self.pulse.silence() < MAX_SILENCE && !self.commands.is_closed()
    }

    /// Returns when the shards of all replicas are lost for good, with the reason.
    pub async fn wait_for_loss(&mut self) -> String {
        let of_all = |all: &[ReplicaStatus]| EngineStatus::of_all(all.iter().map(|one| &one.status));
        let is_lost = |all: &Vec<ReplicaStatus>| matches!(of_all(all), EngineStatus::Lost(_));
        match self.status.wait_for(is_lost).await.map(|all| of_all(&all)) {
            Ok(EngineStatus::Lost(reason)) => reason,
            _ => "the engine loop has ended".to_owned(),
        }
    }

    /// Queues a request. Refused at once, with the limit that was hit, when there is no room for it. Called from the task
    /// of a traced request, it is a part of its trace.
    pub async fn submit(&self, request: NewRequest) -> Result<Generation, Refused> {
        self.submit_arriving(request, None).await
    }

    /// Like [`Self::submit`], for a request that was announced as about to come.
    pub async fn submit_arriving(
        &self,
        request: NewRequest,
        arriving: Option<Arriving>,
    ) -> Result<Generation, Refused> {
        let (events_tx, events) = mpsc::channel(max_unread(&request));
        let (reply, accepted) = oneshot::channel();
        let trace = RequestTrace::current().map(|request| Box::new(SequenceTrace::begin(&request)));
        let submit =
            Command::Submit { request: Box::new(request), events: events_tx, trace, arriving, reply };
        self.commands.send(submit).map_err(|_| Refused::ShuttingDown)?;
        let id = accepted.await.map_err(|_| Refused::ShuttingDown)??;
        tracing::debug!(sequence = id.0, "queued");
        Ok(Generation { id, events, commands: self.commands.clone(), adapter: None })
    }
}

/// How many events of a request may wait to be read.
fn max_unread(request: &NewRequest) -> usize {
    let top = request.sampling.num_top_logprobs as usize * size_of::<TopToken>();
    MAX_UNREAD_BYTES / (size_of::<EventKind>() + top)
}

/// A generation under way. Dropping it cancels what is left of it.
pub struct Generation {
    id: RequestId,
    events: mpsc::Receiver<EventKind>,
    commands: mpsc::UnboundedSender<Command>,
    /// Keeps its adapter loaded, and counts it.
    adapter: Option<AdapterUse>,
}

impl Generation {
    /// Keeps this adapter loaded until it is dropped.
    pub fn holding(mut self, adapter: Option<AdapterLease>) -> Self {
        self.adapter = adapter.map(AdapterUse::begin);
        self
    }

    /// The next event of those that are for clients; `None` only if the engine loop ended without a final event.
    pub async fn next(&mut self) -> Option<EventKind> {
        let event = self.events.recv().await;
        if let (Some(EventKind::Admitted { .. }), Some(adapter)) = (&event, &mut self.adapter) {
            adapter.on_admitted();
        }
        event
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        // The loop ignores ids it no longer knows, and when it is gone there is nothing to cancel.
        let _ = self.commands.send(Command::Cancel(self.id));
    }
}
