//! The health checks: readiness and liveness.

use axum::extract::State;

use crate::base::error::Error;
use crate::http::state::AppState;

/// `GET /health`, `/health/ready` and `/ping`: 200 if the shards answer steps and new requests are accepted.
pub async fn ready(State(app): State<AppState>) -> Result<(), Error> {
    app.inference.ready()
}

/// `GET /health/live`: 200 if the engine loop runs, whatever the state of the shards.
pub async fn live(State(app): State<AppState>) -> Result<(), Error> {
    if app.inference.engine.is_live() { Ok(()) } else { Err(Error::Unhealthy) }
}
