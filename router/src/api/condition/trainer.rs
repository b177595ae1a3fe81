//! Weights from a trainer over torch.distributed, under SGLang's paths: the shards become ranks of its group, receive what it
//! broadcasts, and use it when all tensors of the model are there.

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::handler::check_right;
use super::query::{Asked, unknown};
use super::tensors::UpdateWeightsFromDistributed;
use super::update::{UpdateMode, WeightsState, check_version, in_any_case, replace};
use crate::api::known_fields::{HasKnownFields, Known, On};
use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::engine::trainer::{Meeting, Missing, ReceiveFailure, Received, Trainers};
use crate::http::state::AppState;

/// The default name of a group in SGLang.
const GROUP: &str = "weight_update_group";
/// Longest name of a group, in bytes.
const MAX_GROUP_BYTES: usize = 128;

/// The body of `/init_weights_update_group`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct InitWeightsUpdateGroup {
    /// The trainer, as `--trainer-host` has it.
    pub master_address: String,
    /// Where it has the store by which the ranks find each other.
    pub master_port: u16,
    /// The rank of the first shard; rank 0 is the trainer.
    pub rank_offset: u32,
    /// All ranks: the trainer, the shards of this server, and those of further ones.
    pub world_size: u32,
    /// What the trainer calls the group.
    pub group_name: Option<String>,
    /// `gloo`.
    pub backend: Option<String>,
}

/// The body of `/destroy_weights_update_group`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct DestroyWeightsUpdateGroup {
    /// The group.
    pub group_name: Option<String>,
}

/// What a trainer is told.
#[derive(Debug, Serialize, ToSchema)]
pub struct TrainerState {
    /// True; what fails is an error.
    pub success: bool,
    /// The same in words.
    pub message: String,
    /// Tensors that are yet to come before the weights are used.
    pub missing: u32,
    /// The weights in use.
    #[serde(flatten)]
    pub weights: WeightsState,
}

impl HasKnownFields for InitWeightsUpdateGroup {
    const ON: On = On::InitWeightsUpdateGroup;
}

impl HasKnownFields for DestroyWeightsUpdateGroup {
    const ON: On = On::DestroyWeightsUpdateGroup;
}

/// `POST /init_weights_update_group`: answers when the ranks have met.
pub async fn init(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    asked: Asked,
    Known(request): Known<InitWeightsUpdateGroup>,
) -> Result<Json<TrainerState>, Error> {
    check(&app, &caller, &asked)?;
    let meeting = meeting(request, &app.weights_rules.trainers)?;
    let message = format!("the shards are ranks of the group {}", meeting.name);
    let trainers = app.weights_rules.trainers.clone();
    in_any_case(async move { trainers.join(meeting).await }).await?.map_err(|failure| failed(&failure))?;
    Ok(told(&app, message))
}

/// `POST /update_weights_from_distributed`: answers when these tensors are there. If none is missing, requests are computed
/// with the weights then.
pub async fn update(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    asked: Asked,
    Known(request): Known<UpdateWeightsFromDistributed>,
) -> Result<Json<TrainerState>, Error> {
    check(&app, &caller, &asked)?;
    check_version("weight_version", request.weight_version.as_deref())?;
    in_any_case(receive(app, request)).await?
}

/// `POST /destroy_weights_update_group`
pub async fn destroy(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    asked: Asked,
    Known(request): Known<DestroyWeightsUpdateGroup>,
) -> Result<Json<TrainerState>, Error> {
    check(&app, &caller, &asked)?;
    let name = group_name(request.group_name)?;
    if !app.weights_rules.trainers.leave(&name).await {
        return Err(no_group(&name));
    }
    Ok(told(&app, format!("the shards have left the group {name}")))
}

async fn receive(app: AppState, request: UpdateWeightsFromDistributed) -> Result<Json<TrainerState>, Error> {
    let tensors = request.announced()?;
    let name = group_name(request.group_name)?;
    let rules = &app.weights_rules;
    let root = rules.root.as_ref().and_then(|root| root.canonicalize().ok()).ok_or_else(no_root)?;
    let received = rules.trainers.receive(&root, &name, &tensors).await.ok_or_else(|| no_group(&name))?;
    let folder = match received.map_err(|failure| failed(&failure))? {
        Received::Whole(folder) => folder,
        Received::Part(Missing { number, first }) => {
            let message = format!("{number} tensors are yet to come, {first} among them");
            let Json(state) = told(&app, message);
            return Ok(Json(TrainerState { missing: number, ..state }));
        }
    };
    let mode =
        if request.abort_all_requests == Some(true) { UpdateMode::Abort } else { UpdateMode::Recompute };
    if let Err(error) = replace(&app, folder.clone(), request.weight_version, mode, "names").await {
        rules.trainers.forget(&folder).await;
        return Err(error);
    }
    Ok(told(&app, "requests are computed with the new weights".to_owned()))
}

fn check(app: &AppState, caller: &Caller, asked: &Asked) -> Result<(), Error> {
    check_right(app, caller)?;
    app.inference.model.check(asked.model.as_deref())?;
    if asked.level.is_some() { Err(unknown("level")) } else { Ok(()) }
}

fn meeting(request: InitWeightsUpdateGroup, trainers: &Trainers) -> Result<Meeting, Error> {
    let InitWeightsUpdateGroup { master_address: host, master_port: port, rank_offset, world_size, .. } =
        request;
    if !trainers.hosts.contains(&host) {
        let message = "`master_address` must be one of --trainer-host";
        return Err(Error::invalid("master_address", message));
    }
    if port == 0 {
        return Err(Error::invalid("master_port", "`master_port` must be from 1 to 65535. Given: 0"));
    }
    if let Some(backend) = request.backend.filter(|backend| backend != "gloo") {
        let backend: String = backend.chars().take(20).collect();
        let message = format!("`backend` must be gloo: weights are received on the host. Given: {backend}");
        return Err(Error::invalid("backend", message));
    }
    let num_ranks = trainers.num_ranks();
    if rank_offset == 0 || rank_offset.checked_add(num_ranks).is_none_or(|end| end > world_size) {
        let message = format!(
            "`rank_offset` must be at least 1, and `world_size` at least `rank_offset` and {num_ranks} shards. \
             Given: {rank_offset} and {world_size}"
        );
        return Err(Error::invalid("world_size", message));
    }
    let name = group_name(request.group_name)?;
    Ok(Meeting { host, port, name, rank_offset, world_size, timeout: trainers.timeout })
}

fn group_name(name: Option<String>) -> Result<String, Error> {
    let name = name.unwrap_or_else(|| GROUP.to_owned());
    if name.is_empty() || name.len() > MAX_GROUP_BYTES || name.contains(char::is_control) {
        let rule = format!("1 to {MAX_GROUP_BYTES} bytes and no control characters");
        let message = format!("`group_name` must have {rule}. Given: {} bytes", name.len());
        return Err(Error::invalid("group_name", message));
    }
    Ok(name)
}

fn told(app: &AppState, message: String) -> Json<TrainerState> {
    let engine = &app.inference.engine;
    let weights = WeightsState::new(&engine.wanted().get(), &engine.facts().weights_version);
    Json(TrainerState { success: true, message, missing: 0, weights })
}

fn no_root() -> Error {
    Error::Forbidden("no weights may be received: there is no folder for them (--weights-root)")
}

fn no_group(name: &str) -> Error {
    let message = format!("the shards are in no group `{name}`: /init_weights_update_group makes one");
    Error::invalid("group_name", message)
}

fn failed(failure: &ReceiveFailure) -> Error {
    match failure {
        ReceiveFailure::Refused(reason) => {
            let message = format!("the weights cannot be used: {reason}; the group has ended");
            Error::invalid("names", message)
        }
        ReceiveFailure::Ended(reason) => Error::NotReceived(reason.clone()),
        ReceiveFailure::Unreachable(reason) => {
            tracing::warn!(reason, "a shard is no rank of the trainer's group any more");
            Error::NotReceived("a shard does not answer".to_owned())
        }
    }
}
