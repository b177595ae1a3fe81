//! Is the server there, and does it serve? The truth, from memory, without asking the shards anything.

use axum::extract::State;

use crate::app::AppState;
use crate::error::Error;
use crate::generation::EngineStatus;
use crate::scheduler::Refused;

/// Ready: steps are being answered and requests are taken.
pub(super) async fn ready(State(app): State<AppState>) -> Result<(), Error> {
    if app.shutdown.is_draining() {
        return Err(Error::Refused(Refused::ShuttingDown));
    }
    match app.engine.status() {
        EngineStatus::Ready => Ok(()),
        EngineStatus::Lost(_) => Err(Error::Unhealthy),
    }
}

/// Live: this process answers.
pub(super) async fn live() {}
