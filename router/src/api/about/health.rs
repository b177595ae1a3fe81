//! The health checks: readiness and liveness.

use axum::extract::State;

use crate::base::error::Error;
use crate::engine::generation::EngineStatus;
use crate::http::state::AppState;

/// `GET /health`, `/health/ready` and `/ping`: 200 if the shards answer steps and new requests are accepted. The body says
/// so if the model sleeps and a request would wake it.
pub async fn ready(State(app): State<AppState>) -> Result<&'static str, Error> {
    app.inference.ready()?;
    Ok(match app.inference.engine.status() {
        EngineStatus::Asleep => "asleep",
        EngineStatus::Changing => "changing",
        EngineStatus::Ready | EngineStatus::Restarting(_) | EngineStatus::Lost(_) => "",
    })
}

/// `GET /health/live`: 200 if the engine loop runs, whatever the state of the shards.
pub async fn live(State(app): State<AppState>) -> Result<(), Error> {
    if app.inference.engine.is_live() { Ok(()) } else { Err(Error::Unhealthy) }
}
