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
        EngineStatus::Restarting(_) => Err(Error::Restarting),
        EngineStatus::Lost(_) => Err(Error::Unhealthy),
    }
}

/// Live: the loop that drives the shards turns, whatever they do.
pub(super) async fn live(State(app): State<AppState>) -> Result<(), Error> {
    if app.engine.is_live() { Ok(()) } else { Err(Error::Unhealthy) }
}
