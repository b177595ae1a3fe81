//! Sleep and wake over the admin socket. Of a server of several models, the proxy in front tells each of them so: it knows
//! what else is awake.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::error::AdminError;
use super::state::Admin;
use crate::engine::condition::{Condition, ModelCondition, SleepLevel};
use crate::engine::generation::EngineStatus;

/// How deep a model is to sleep.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Depth {
    #[serde(default = "first_level")]
    level: u32,
}

fn first_level() -> u32 {
    SleepLevel::WeightsKept.number()
}

/// `GET /condition`
pub(super) async fn get(State(admin): State<Admin>) -> Json<ModelCondition> {
    Json(told(&admin, &admin.engine.wanted().get()))
}

/// `POST /sleep?level=`: answers when the memory is given back.
pub(super) async fn sleep(
    State(admin): State<Admin>,
    query: Result<Query<Depth>, QueryRejection>,
) -> Result<Json<ModelCondition>, AdminError> {
    let Query(Depth { level }) = query?;
    let level = SleepLevel::of_number(level).ok_or(AdminError::Level { given: level })?;
    Ok(Json(told(&admin, &admin.engine.sleep(level).await?)))
}

/// `POST /wake_up`: answers when requests are computed again.
pub(super) async fn wake_up(State(admin): State<Admin>) -> Result<Json<ModelCondition>, AdminError> {
    Ok(Json(told(&admin, &admin.engine.wake_up_now().await?)))
}

/// `POST /refuse_deferred`: calls of clients that wait until this model is told to wake up are refused.
pub(super) async fn refuse_deferred(State(admin): State<Admin>) -> Result<(), AdminError> {
    Ok(admin.engine.refuse_deferred()?)
}

fn told(admin: &Admin, condition: &Condition) -> ModelCondition {
    ModelCondition {
        sleep_level: condition.sleep_level(),
        is_changing: admin.engine.status() == EngineStatus::Changing,
        is_needed: admin.engine.wanted().is_needed(),
        awake_bytes: admin.engine.awake_bytes(),
    }
}
