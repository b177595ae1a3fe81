//! The routes of the admin socket. They are few and for operators, so they are no part of the public API.

use std::time::Duration;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::condition;
use super::error::AdminError;
use super::limit::Limit;
use super::state::Admin;
use crate::engine::membership::ReplicaEntry;
use crate::engine::operator::Removal;
use crate::engine::replica_address::ReplicaAddress;

/// Longer bodies are refused: an address is short.
const MAX_BODY_BYTES: usize = 16 << 10;
/// How long what runs on a replica that is removed may go on there.
const DEFAULT_LIMIT: Duration = Duration::from_secs(30);

/// The routes.
pub fn service(admin: Admin) -> Router {
    Router::new()
        .route("/replicas", get(list).post(add))
        .route("/replicas/{replica}", delete(remove))
        .route("/replicas/{replica}/drain", post(drain))
        .route("/replicas/{replica}/resume", post(resume))
        .route("/condition", get(condition::get))
        .route("/sleep", post(condition::sleep))
        .route("/wake_up", post(condition::wake_up))
        .route("/refuse_deferred", post(condition::refuse_deferred))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(admin)
}

/// All replicas.
#[derive(Serialize)]
struct Replicas {
    replicas: Vec<ReplicaEntry>,
}

/// A replica that is to be added.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewReplica {
    address: String,
}

async fn list(State(admin): State<Admin>) -> Result<Json<Replicas>, AdminError> {
    Ok(Json(Replicas { replicas: admin.engine.replicas().await? }))
}

async fn add(
    State(admin): State<Admin>,
    body: Result<Json<NewReplica>, JsonRejection>,
) -> Result<(StatusCode, Json<ReplicaEntry>), AdminError> {
    let Json(NewReplica { address }) = body?;
    let address: ReplicaAddress = address.parse().map_err(AdminError::Address)?;
    let added = tokio::spawn(async move { admin.add(&address).await }).await??;
    Ok((StatusCode::CREATED, Json(added)))
}

async fn drain(
    State(admin): State<Admin>,
    Path(replica): Path<usize>,
    query: Result<Query<Limit>, QueryRejection>,
) -> Result<Json<ReplicaEntry>, AdminError> {
    let limit = query?.duration()?;
    let drained = admin.engine.drain_replica(replica, limit).await?;
    admin.write_record().await;
    Ok(Json(drained))
}

async fn resume(
    State(admin): State<Admin>,
    Path(replica): Path<usize>,
) -> Result<Json<ReplicaEntry>, AdminError> {
    let resumed = admin.engine.resume_replica(replica).await?;
    admin.write_record().await;
    Ok(Json(resumed))
}

/// Answers when the replica is forgotten.
async fn remove(
    State(admin): State<Admin>,
    Path(replica): Path<usize>,
    query: Result<Query<Limit>, QueryRejection>,
) -> Result<Json<ReplicaEntry>, AdminError> {
    let limit = query?.duration()?.unwrap_or(DEFAULT_LIMIT);
    let removal = admin.engine.remove_replica(replica, limit).await?;
    admin.write_record().await;
    Ok(Json(tokio::spawn(async move { admin.end_shards(removal).await }).await??))
}

impl Admin {
    /// Goes on also if nobody waits for it any more: shards that are connected must be added.
    async fn add(&self, address: &ReplicaAddress) -> Result<ReplicaEntry, AdminError> {
        let text = address.to_string();
        let present = self.engine.replicas().await?.into_iter().find(|entry| entry.address == text);
        if let Some(ReplicaEntry { address, replica, .. }) = present {
            return Err(AdminError::Present { address, replica });
        }
        let engine = self.recruiter.recruit(address).await?;
        let added = self.engine.add_replica(engine).await?;
        self.write_record().await;
        Ok(added)
    }

    /// Goes on also if nobody waits for it any more: shards that nobody needs must end.
    async fn end_shards(&self, removal: Removal) -> Result<ReplicaEntry, AdminError> {
        let forgotten = removal.forgotten().await?;
        if forgotten.supervised {
            (self.on_removed)(forgotten.replica);
        }
        Ok(forgotten)
    }

    async fn write_record(&self) {
        if let Ok(replicas) = self.engine.replicas().await {
            self.record.write(&replicas);
        }
    }
}
