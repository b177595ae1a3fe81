//! One shard over its socket. Only this folder knows protobuf types.

mod describe;
mod fetching;
mod outcomes;
mod pb;
mod plans;
mod receiving;

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use penstock_scheduler::{Outcome, Plan};
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status, Streaming};
use tower::service_fn;

use super::adapters::{LoadFailure, LoadedAdapter, Source, UnloadFailure};
use super::block_transfer::BlockSource;
use super::condition::{AwakeBytes, Weights};
use super::mutual_tls::MutualTls;
use super::shard_socket::{Credentials, Place, ShardSocket};
use super::{EngineError, EngineFacts};
use crate::base::role::Role;
pub(super) use fetching::Fetch;
use plans::to_pb;
pub(super) use receiving::Order;

/// Largest message either way: a prompt of a million tokens is 5 MB, prompt scores of one step far less.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Time for one call: a process behind a local socket responds at once or never.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// The way of a machine that is gone without a word is closed.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// A shard's methods, each call with what the shard asks for.
type Client = pb::engine_client::EngineClient<InterceptedService<Channel, Credentials>>;

/// A connected shard with an open stream of plans.
pub(super) struct ShardClient {
    client: Client,
    plans: mpsc::UnboundedSender<pb::Plan>,
    outcomes: Streaming<pb::Outcome>,
    epoch: u64,
}

/// The answer of a shard to `Describe`: the facts, and its place in the group.
pub(super) struct Description {
    pub facts: EngineFacts,
    /// A new one after every start of the process.
    pub instance_id: String,
    pub rank: u32,
    pub last_epoch: u64,
    /// 0 if it is awake.
    pub sleep_level: u32,
    /// The label of the weights in use; empty for the weights of its start.
    pub weights_label: String,
    pub role: Role,
    /// Where its blocks are fetched from, if they can be.
    pub block_source: Option<BlockSource>,
    /// The memory that it needs to wake up.
    pub awake_bytes: AwakeBytes,
}

/// Why a shard does not become what is wanted of it.
pub(super) enum ChangeFailure {
    /// It cannot, and says why.
    Refused(String),
    /// It cannot be reached; it may be back soon.
    Unreachable(String),
}

/// A shard's outcome: with its tokens if it is the first rank of the last stage, and the checksum of what it sampled.
pub(super) struct RankOutcome {
    pub outcome: Outcome,
    pub checksum: u32,
}

/// Times after which a shard counts as lost.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Time between two heartbeats of a healthy shard.
    pub interval: Duration,
    /// Longest time without a heartbeat.
    pub silence: Duration,
    /// Longest time for one step.
    pub step: Duration,
}

impl Patience {
    /// A stopped process is noticed within three seconds; how long a step may take depends on model and machine.
    pub fn with_step(step: Duration) -> Self {
        Self { interval: Duration::from_millis(250), silence: Duration::from_millis(2500), step }
    }
}

/// The facts of the shard behind a socket; the error is a message for operators.
pub async fn describe_shard(socket: &Path) -> Result<EngineFacts, String> {
    let mut connection = Connection::open(&ShardSocket::Unix(socket.to_owned())).await?;
    Ok(connection.describe().await.map_err(|silent| silent.to_string())?.facts)
}

/// Watches one shard until it stops or hangs, and returns the reason for operators.
pub async fn watch_shard(socket: &Path, patience: Patience) -> String {
    match Connection::open(&ShardSocket::Unix(socket.to_owned())).await {
        Ok(connection) => watch(connection.0, patience).await,
        Err(reason) => reason,
    }
}

/// Why a stream of outcomes has ended, with the reason for operators.
pub(super) enum Broken {
    /// The shard ended or cannot be reached.
    Unreachable(String),
    /// The shard sent something that the protocol does not allow.
    Protocol(String),
}

impl Broken {
    pub fn at_rank(self, rank: usize) -> EngineError {
        match self {
            Self::Unreachable(reason) => EngineError::Unreachable { rank, reason },
            Self::Protocol(reason) => EngineError::Protocol { rank, reason },
        }
    }
}

/// A connected shard that has no stream of plans yet.
pub(super) struct Connection(Client);

/// Why a shard describes nothing.
#[derive(Debug, Error)]
pub(super) enum Silent {
    /// The secret that it was sent is another than its own.
    #[error("it wants another secret")]
    Unauthenticated,
    /// It does not answer, or not in time.
    #[error("{0}")]
    Unreachable(String),
}

impl Silent {
    pub fn at_rank(self, rank: usize) -> EngineError {
        match self {
            Self::Unauthenticated => EngineError::Unauthenticated { rank },
            Self::Unreachable(reason) => EngineError::Unreachable { rank, reason },
        }
    }

    fn of_status(status: Status) -> Self {
        match status.code() {
            Code::Unauthenticated => Self::Unauthenticated,
            _ => Self::Unreachable(status.to_string()),
        }
    }
}

impl Connection {
    pub async fn open(socket: &ShardSocket) -> Result<Self, String> {
        let place = socket.place().map_err(|error| format!("{socket}: {error}"))?;
        let channel =
            channel(&place, socket.tls()).await.map_err(|error| format!("{place}: {}", whole(&error)))?;
        let client = pb::engine_client::EngineClient::with_interceptor(channel, socket.credentials())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Ok(Self(client))
    }

    pub async fn describe(&mut self) -> Result<Description, Silent> {
        let late =
            || Silent::Unreachable(format!("no answer to Describe within {} s", CALL_DEADLINE.as_secs()));
        let call = self.0.describe(pb::DescribeRequest {});
        let response = tokio::time::timeout(CALL_DEADLINE, call).await.map_err(|_| late())?;
        Ok(response.map_err(Silent::of_status)?.into_inner().into())
    }

    /// Loads an adapter. The caller limits the time.
    pub async fn load_adapter(mut self, source: &Source) -> Result<LoadedAdapter, LoadFailure> {
        let request = pb::LoadAdapterRequest {
            path: source.folder.display().to_string(),
            expected_id: source.expected_id.as_deref().unwrap_or_default().to_owned(),
            name: source.name.to_string(),
        };
        let response = self.0.load_adapter(request).await.map_err(load_failure)?.into_inner();
        Ok(LoadedAdapter {
            id: response.adapter_id.into(),
            vocab_size: response.vocab_size,
            invocation: response.invocation_tokens.into(),
        })
    }

    /// Unloads an adapter. The caller limits the time.
    pub async fn unload_adapter(mut self, id: &str) -> Result<(), UnloadFailure> {
        let request = pb::UnloadAdapterRequest { adapter_id: id.to_owned() };
        match self.0.unload_adapter(request).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::FailedPrecondition => Err(UnloadFailure::InUse),
            Err(status) => Err(UnloadFailure::Unreachable(status.to_string())),
        }
    }

    /// Sends the shard to sleep. The caller limits the time.
    pub async fn sleep(mut self, level: u32) -> Result<(), ChangeFailure> {
        self.0.sleep(pb::SleepRequest { level }).await.map(drop).map_err(change_failure)
    }

    /// Wakes the shard up, for which it may have to read its weights.
    pub async fn wake_up(mut self) -> Result<(), ChangeFailure> {
        self.0.wake_up(pb::WakeUpRequest {}).await.map(drop).map_err(change_failure)
    }

    /// Whether the weights of a folder may take the place of those in use, and what they are then. The caller limits the
    /// time.
    pub async fn check_weights(mut self, folder: &Path) -> Result<String, ChangeFailure> {
        let request = pb::CheckWeightsRequest { path: folder.display().to_string() };
        let response = self.0.check_weights(request).await.map_err(change_failure)?;
        Ok(response.into_inner().weights_version)
    }

    /// Has the shard compute with other weights, which it has to read; `None`: with those of its start.
    pub async fn replace_weights(mut self, weights: Option<&Weights>) -> Result<(), ChangeFailure> {
        let request = weights.map_or_else(Default::default, |weights| pb::ReplaceWeightsRequest {
            path: weights.new.folder.display().to_string(),
            weights_version: weights.new.files.clone(),
            label: weights.label(),
        });
        self.0.replace_weights(request).await.map(drop).map_err(change_failure)
    }

    /// Reads the heartbeats of the shard until they stop, and returns the reason for operators.
    pub fn watch(&self, patience: Patience) -> impl Future<Output = String> + Send + use<> {
        watch(self.0.clone(), patience)
    }

    /// Opens the stream of plans under `epoch`.
    pub async fn run(mut self, epoch: u64) -> Result<ShardClient, String> {
        // Bounded in effect: the scheduler has few plans without an outcome.
        let (plans, receiver) = mpsc::unbounded_channel();
        let call = self.0.run(UnboundedReceiverStream::new(receiver));
        let response = tokio::time::timeout(CALL_DEADLINE, call)
            .await
            .map_err(|_| format!("no answer to Run within {} s", CALL_DEADLINE.as_secs()))?
            .map_err(|status| status.to_string())?;
        Ok(ShardClient { client: self.0, plans, outcomes: response.into_inner(), epoch })
    }
}

async fn channel(place: &Place, tls: Option<&MutualTls>) -> Result<Channel, tonic::transport::Error> {
    let path = match place {
        Place::Unix(path) => path.clone(),
        Place::Tcp(address) => return tcp_channel(address, tls).await,
    };
    let connector = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The URI is required and ignored: the connector always opens the socket.
    let endpoint = Endpoint::from_static("http://shard").connect_timeout(CALL_DEADLINE);
    endpoint.connect_with_connector(connector).await
}

async fn tcp_channel(address: &str, tls: Option<&MutualTls>) -> Result<Channel, tonic::transport::Error> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?;
    let endpoint = endpoint.tcp_nodelay(true).tcp_keepalive(Some(TCP_KEEPALIVE));
    let endpoint = match tls {
        Some(tls) => endpoint.tls_config(tls.for_grpc())?,
        None => endpoint,
    };
    endpoint.connect_timeout(CALL_DEADLINE).connect().await
}

/// The error with its causes: tonic's own words are only that there was one.
fn whole(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", whole(cause)),
        None => error.to_string(),
    }
}

/// A shard that ends or hangs may be replaced; one that answers has its reasons.
fn load_failure(status: Status) -> LoadFailure {
    if is_lost(&status) {
        LoadFailure::Unreachable(status.to_string())
    } else {
        LoadFailure::Refused(status.message().to_owned())
    }
}

fn change_failure(status: Status) -> ChangeFailure {
    if is_lost(&status) {
        ChangeFailure::Unreachable(status.to_string())
    } else {
        ChangeFailure::Refused(status.message().to_owned())
    }
}

/// Whether this is about the connection. One that breaks during a call may be an internal error, too, which then has a
/// source; a shard's own has none.
fn is_lost(status: &Status) -> bool {
    let codes = [Code::Unavailable, Code::Cancelled, Code::DeadlineExceeded, Code::Unknown];
    codes.contains(&status.code()) || status.source().is_some()
}

impl ShardClient {
    pub fn send(&self, plan: &Plan) -> Result<(), String> {
        self.plans.send(to_pb(plan, self.epoch)).map_err(|_| "its stream is closed".to_owned())
    }

    /// The next outcome. Cancel safe.
    pub async fn recv(&mut self) -> Result<RankOutcome, Broken> {
        let outcome =
            self.outcomes.message().await.map_err(|status| Broken::Unreachable(status.to_string()))?;
        let outcome = outcome.ok_or_else(|| Broken::Unreachable("it closed the stream".to_owned()))?;
        // Late outcomes of an older epoch arrive on the stream of that epoch, never on this one.
        if outcome.epoch != self.epoch {
            let (got, expected) = (outcome.epoch, self.epoch);
            return Err(Broken::Protocol(format!("it answers in epoch {got}, not {expected}")));
        }
        outcome.try_into().map_err(Broken::Protocol)
    }

    /// Reads the heartbeats of the shard until they stop, and returns the reason for operators.
    pub fn watch(&self, patience: Patience) -> impl Future<Output = String> + Send + use<> {
        watch(self.client.clone(), patience)
    }
}

async fn watch(mut client: Client, patience: Patience) -> String {
    let request = pb::WatchRequest { interval_ms: patience.interval.as_millis() as u32 };
    let silent = || format!("no heartbeat for {} ms", patience.silence.as_millis());
    let mut beats = match tokio::time::timeout(patience.silence, client.watch(request)).await {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return status.to_string(),
        Err(_) => return silent(),
    };
    loop {
        match tokio::time::timeout(patience.silence, beats.message()).await {
            Err(_) => return silent(),
            Ok(Err(status)) => return status.to_string(),
            Ok(Ok(None)) => return "it closed the heartbeat stream".to_owned(),
            Ok(Ok(Some(beat))) if u128::from(beat.running_ms) > patience.step.as_millis() => {
                let (step, ms) = (beat.finished_step + 1, beat.running_ms);
                return format!("step {step} does not end: it runs for {ms} ms (--step-timeout)");
            }
            Ok(Ok(Some(_))) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;

    #[test]
    fn only_a_shards_own_words_refuse_an_adapter() {
        let refused = load_failure(Status::internal("no memory"));
        assert_eq!(refused, LoadFailure::Refused("no memory".to_owned()));
        let mut broken = Status::internal("h2 protocol error");
        broken.set_source(Arc::new(io::Error::from(io::ErrorKind::BrokenPipe)));
        for lost in [broken, Status::unavailable("gone")] {
            assert!(matches!(load_failure(lost), LoadFailure::Unreachable(_)));
        }
    }
}
