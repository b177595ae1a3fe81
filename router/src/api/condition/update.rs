//! `POST /update_weights`: the weights of a folder in the place of those in use.

use std::path::PathBuf;

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::handler::{check_right, refused};
use super::query::{Asked, unknown};
use crate::api::known_fields::{HasKnownFields, Known, On};
use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::engine::condition::Condition;
use crate::engine::weights::CheckFailure;
use crate::http::state::AppState;

/// Longest name of weights, in bytes.
const MAX_VERSION_BYTES: usize = 128;

/// The body of `/update_weights`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct UpdateWeights {
    /// The folder, below `--weights-root`: config.json and safetensors of the same model.
    pub path: String,
    /// What these weights are called from now on; by default what tells their files from others.
    pub version: Option<String>,
    /// What becomes of requests that have begun: they are computed again from their tokens and go on with these weights, or
    /// they fail.
    pub mode: Option<UpdateMode>,
}

/// What becomes of requests that have begun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpdateMode {
    /// They go on.
    #[default]
    Recompute,
    /// They fail.
    Abort,
}

/// The weights in use.
#[derive(Debug, Serialize, ToSchema)]
pub struct WeightsState {
    /// What they are called.
    pub weights_version: String,
    /// How often weights were replaced until these were there; 0 for those of the start.
    pub weights_number: u64,
}

impl WeightsState {
    /// `first`: what those of the start are called.
    pub fn new(condition: &Condition, first: &str) -> Self {
        let version = condition.weights.as_ref().map_or(first, |weights| &weights.new.version);
        Self { weights_version: version.to_owned(), weights_number: condition.weights_number() }
    }
}

impl HasKnownFields for UpdateWeights {
    const ON: On = On::UpdateWeights;
}

/// `POST /update_weights`: answers when requests are computed with these weights.
pub async fn update_weights(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    asked: Asked,
    Known(request): Known<UpdateWeights>,
) -> Result<Json<WeightsState>, Error> {
    check_right(&app, &caller)?;
    app.inference.model.check(asked.model.as_deref())?;
    if asked.level.is_some() {
        return Err(unknown("level"));
    }
    let UpdateWeights { path, version, mode } = request;
    check_version("version", version.as_deref())?;
    let Some(folder) = app.weights_rules.folder(&path) else {
        return Err(Error::invalid("path", "`path` must be a folder below --weights-root"));
    };
    in_any_case(async move { replace(&app, folder, version, mode.unwrap_or_default(), "path").await })
        .await?
        .map(Json)
}

/// Does it also when the client leaves meanwhile.
pub(super) async fn in_any_case<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(work).await.map_err(|_| Error::Internal)
}

/// Has requests computed with the weights of a folder, if they fit. `param`: what is at fault if they do not.
pub(super) async fn replace(
    app: &AppState,
    folder: PathBuf,
    version: Option<String>,
    mode: UpdateMode,
    param: &'static str,
) -> Result<WeightsState, Error> {
    let (rules, engine) = (&app.weights_rules, &app.inference.engine);
    let _turn = rules.turn.lock().await;
    let before = engine.wanted().get().weights;
    let checked = rules.check(folder.clone(), version).await;
    let new = checked.map_err(|failure| unfit(failure, param, &folder.display().to_string()))?;
    let condition = engine.replace_weights(new, mode == UpdateMode::Abort).await.map_err(refused)?;
    if let Some(before) = before.filter(|before| before.new.folder != folder) {
        rules.trainers.forget(&before.new.folder).await;
    }
    Ok(WeightsState::new(&condition, &engine.facts().weights_version))
}

pub(super) fn check_version(param: &'static str, version: Option<&str>) -> Result<(), Error> {
    let is_name =
        |it: &str| !it.trim().is_empty() && it.len() <= MAX_VERSION_BYTES && !it.contains(char::is_control);
    if version.is_none_or(is_name) {
        return Ok(());
    }
    let given = version.map_or(0, str::len);
    let rule = format!("1 to {MAX_VERSION_BYTES} bytes, not only spaces, and no control characters");
    Err(Error::invalid(param, format!("`{param}` must have {rule}. Given: {given} bytes")))
}

/// The reason without the path of the folder.
fn unfit(failure: CheckFailure, param: &'static str, folder: &str) -> Error {
    match failure {
        CheckFailure::Refused(reason) => {
            let reason = reason.replace(folder, "its folder");
            Error::invalid(param, format!("the weights cannot be used: {reason}"))
        }
        CheckFailure::Unreachable(reason) => {
            tracing::warn!(reason, "no shard says whether weights fit");
            Error::Restarting
        }
        CheckFailure::TooSlow(limit) => Error::WeightsTooSlow { limit_s: limit.as_secs() },
    }
}
