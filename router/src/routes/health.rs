//! Is the server there, and does it serve?

use axum::extract::State;

use crate::app::AppState;
use crate::error::Error;

/// Ready: steps are being answered and requests are taken.
pub(super) async fn ready(State(app): State<AppState>) -> Result<(), Error> {
    app.ready()
}

/// Live: the loop that drives the shards turns, whatever they do.
pub(super) async fn live(State(app): State<AppState>) -> Result<(), Error> {
    if app.engine.is_live() { Ok(()) } else { Err(Error::Unhealthy) }
}
