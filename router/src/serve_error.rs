//! Why the router could not start, or stopped.

use thiserror::Error as ThisError;

use crate::base::error::Error;
use crate::block_events::options::OpenEndpoint;
use crate::chat::ChatFormatError;
use crate::engine::EngineError;
use crate::engine::condition::BeyondLimit;
use crate::engine::replica_access::ReplicaAccessError;
use crate::http::auth::ApiKeyError;
use crate::inference::limits::LimitsError;
use crate::observe::telemetry::TelemetryError;
use crate::text::tokenizer::TokenizerError;
use crate::{http, replica_groups};

/// Why the router could not start, or stopped.
#[derive(Debug, ThisError)]
#[expect(missing_docs, reason = "the message of each variant explains it")]
pub enum ServeError {
    #[error(transparent)]
    ApiKeys(#[from] ApiKeyError),
    #[error(transparent)]
    Cors(#[from] http::cors::CorsError),
    #[error(transparent)]
    Tls(#[from] http::server::tls::TlsError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    ChatFormat(#[from] ChatFormatError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Limits(#[from] LimitsError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("--lora-adapters: {0}")]
    Adapter(Error),
    #[error(transparent)]
    Groups(#[from] replica_groups::GroupsError),
    #[error(transparent)]
    ReplicaAccess(#[from] ReplicaAccessError),
    #[error(transparent)]
    BlockEvents(#[from] OpenEndpoint),
    #[error(transparent)]
    BeyondBudget(#[from] BeyondLimit),
    #[error("cannot set up the metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    #[error("cannot serve: {0}")]
    Io(#[from] std::io::Error),
    #[error("cannot serve gRPC: {0}")]
    Grpc(#[from] tonic::transport::Error),
    #[error("the model shards are lost: {0}")]
    Lost(String),
}
