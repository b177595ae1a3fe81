//! The handlers.

use axum::extract::State;
use axum::{Extension, Json};

use super::SleepState;
use super::query::{Asked, unknown};
use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::engine::ChangeError;
use crate::engine::condition::{Condition, SleepLevel};
use crate::http::state::AppState;

/// `POST /sleep`: answers when the memory is given back.
pub async fn sleep(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    asked: Asked,
) -> Result<Json<SleepState>, Error> {
    check_right(&app, &caller)?;
    app.inference.model.check(asked.model.as_deref())?;
    told(app.inference.engine.sleep(asked.level.unwrap_or(SleepLevel::WeightsKept)).await)
}

/// `POST /wake_up`: answers when requests are computed again.
pub async fn wake_up(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    asked: Asked,
) -> Result<Json<SleepState>, Error> {
    check_right(&app, &caller)?;
    app.inference.model.check(asked.model.as_deref())?;
    if asked.level.is_some() {
        return Err(unknown("level"));
    }
    told(app.inference.engine.wake_up().await)
}

/// `GET /is_sleeping`
pub async fn is_sleeping(State(app): State<AppState>) -> Json<SleepState> {
    Json(SleepState::from(&app.inference.engine.wanted().get()))
}

fn told(changed: Result<Condition, ChangeError>) -> Result<Json<SleepState>, Error> {
    changed.map(|condition| Json(SleepState::from(&condition))).map_err(refused)
}

/// The error for a caller whose change was not made.
pub(super) fn refused(error: ChangeError) -> Error {
    match error {
        ChangeError::Refused(_) => Error::CannotChange,
        ChangeError::ShuttingDown => Error::Refused(penstock_scheduler::Refused::ShuttingDown),
    }
}

/// A server with keys asks for one that may; one without asks the operator's flag.
pub(super) fn check_right(app: &AppState, caller: &Caller) -> Result<(), Error> {
    if !app.api_keys.is_empty() {
        let refused = Error::Forbidden(
            "this API key may not change the model: its line in --api-key-file needs model=change",
        );
        return if caller.may_change_model { Ok(()) } else { Err(refused) };
    }
    if app.is_model_open {
        Ok(())
    } else {
        Err(Error::Forbidden("the model may not be changed at run time (--allow-model-changes)"))
    }
}
