//! The admin socket of a server with several models: they are listed, loaded and unloaded over it, as JSON over HTTP. Only
//! the user who runs the server may open it.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use axum::{Json, Router};
use penstock_router::admin::{IllegalLimit, Limit};
use penstock_router::base::private_socket::PrivateSocket;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use super::error::FleetError;
use super::roster::{ModelEntry, Reply, Request};
use crate::args::ModelSpec;

/// Longer bodies are refused: a model is a name, a place and some flags.
const MAX_BODY_BYTES: usize = 16 << 10;

/// The state that the handlers share.
#[derive(Clone)]
struct Admin {
    requests: mpsc::Sender<Request>,
    /// How long what runs may go on with a model that is unloaded.
    grace: Duration,
}

/// Serves for as long as it is polled.
pub async fn serve(socket: PrivateSocket, requests: mpsc::Sender<Request>, grace: Duration) {
    // Its file goes when this ends.
    let PrivateSocket { listener, file: _file } = socket;
    let service = Router::new()
        .route("/models", get(list).post(load))
        .route("/models/{*name}", delete(unload))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Admin { requests, grace });
    // It ends with an error only if the listener is broken: then models can no longer be changed, and are served on.
    let _ = axum::serve(listener, service).await;
}

/// All models.
#[derive(Serialize)]
struct Models {
    models: Vec<ModelEntry>,
}

/// A model that is to be loaded.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewModel {
    name: String,
    model: String,
    #[serde(default)]
    flags: BTreeMap<String, Value>,
}

/// Why something was not done.
#[derive(Debug, Error)]
enum AdminError {
    #[error("{0}")]
    Spec(String),
    #[error(transparent)]
    Limit(#[from] IllegalLimit),
    #[error("flags.{flag}: {value} is no text, no number and no boolean")]
    Flag { flag: String, value: Value },
    #[error("{0}")]
    Body(#[from] JsonRejection),
    #[error("{0}")]
    Query(#[from] QueryRejection),
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

impl AdminError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Body(rejection) => rejection.status(),
            Self::Query(rejection) => rejection.status(),
            Self::Fleet(error) => status_of(error),
            Self::Spec(_) | Self::Limit(_) | Self::Flag { .. } => StatusCode::BAD_REQUEST,
        }
    }
}

fn status_of(error: &FleetError) -> StatusCode {
    match error {
        FleetError::Unknown(_) => StatusCode::NOT_FOUND,
        FleetError::NotServing => StatusCode::SERVICE_UNAVAILABLE,
        FleetError::NotLoaded { .. } => StatusCode::BAD_GATEWAY,
        FleetError::NameOfTwo(_)
        | FleetError::TooFewGpus { .. }
        | FleetError::TooMany { .. }
        | FleetError::Busy(_)
        | FleetError::Last(_) => StatusCode::CONFLICT,
        FleetError::OfServer { .. }
        | FleetError::Flags { .. }
        | FleetError::Plan { .. }
        | FleetError::NeverWoken { .. }
        | FleetError::NotWithSeveral { .. }
        | FleetError::MoreThanMost { .. }
        | FleetError::NotUtf8(_) => StatusCode::BAD_REQUEST,
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        (self.status(), Json(serde_json::json!({ "error": self.to_string() }))).into_response()
    }
}

async fn list(State(admin): State<Admin>) -> Result<Json<Models>, AdminError> {
    let (reply, models) = oneshot::channel();
    admin.send(Request::List(reply)).await?;
    Ok(Json(Models { models: models.await.map_err(|_| FleetError::NotServing)? }))
}

/// Answers when the model serves. It goes on to load if nobody waits for it any more.
async fn load(
    State(admin): State<Admin>,
    body: Result<Json<NewModel>, JsonRejection>,
) -> Result<(StatusCode, Json<ModelEntry>), AdminError> {
    let Json(NewModel { name, model, flags }) = body?;
    let flags = flags.into_iter().map(flag).collect::<Result<_, _>>()?;
    let spec = ModelSpec::new(&name, &model, flags).map_err(AdminError::Spec)?;
    let loaded = admin.ask(|reply| Request::Load(spec, reply)).await?;
    Ok((StatusCode::CREATED, Json(loaded)))
}

fn flag((name, value): (String, Value)) -> Result<(String, String), AdminError> {
    let flag = name.replace('_', "-");
    match value {
        Value::String(text) => Ok((flag, text)),
        Value::Number(_) | Value::Bool(_) => Ok((flag, value.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => Err(AdminError::Flag { flag: name, value }),
    }
}

/// Answers when all processes of the model have ended.
async fn unload(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    query: Result<Query<Limit>, QueryRejection>,
) -> Result<Json<ModelEntry>, AdminError> {
    let limit = query?.duration()?.unwrap_or(admin.grace);
    let end = admin.clone().end_after(name.clone(), limit);
    let unloading = admin.ask(|reply| Request::Unload(name, reply));
    tokio::pin!(unloading);
    tokio::select! {
        unloaded = &mut unloading => return Ok(Json(unloaded?)),
        () = end => {}
    }
    Ok(Json(unloading.await?))
}

impl Admin {
    async fn send(&self, request: Request) -> Result<(), FleetError> {
        self.requests.send(request).await.map_err(|_| FleetError::NotServing)
    }

    async fn ask(&self, request: impl FnOnce(Reply) -> Request) -> Result<ModelEntry, FleetError> {
        let (reply, answer) = oneshot::channel();
        self.send(request(reply)).await?;
        answer.await.unwrap_or(Err(FleetError::NotServing))
    }

    async fn end_after(self, name: String, limit: Duration) {
        tokio::time::sleep(limit).await;
        // Nobody is left to be told if it fails: the server has ended.
        let _ = self.send(Request::End(name)).await;
    }
}
