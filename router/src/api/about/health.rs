//! Is the server there, and does it serve?

use axum::extract::State;

use crate::base::error::Error;
use crate::http::state::AppState;

/// Ready: steps are being answered and requests are taken.
pub async fn ready(State(app): State<AppState>) -> Result<(), Error> {
    app.inference.ready()
}

/// Live: the loop that drives the shards turns, whatever they do.
pub async fn live(State(app): State<AppState>) -> Result<(), Error> {
    if app.inference.engine.is_live() { Ok(()) } else { Err(Error::Unhealthy) }
}
