//! Serves the routes on the socket.

use std::io;

use super::routes::service;
use super::socket::AdminSocket;
use super::state::Admin;
use crate::base::shutdown::Shutdown;

/// Serves until the server drains.
pub async fn serve(admin: Admin, socket: AdminSocket, shutdown: Shutdown) -> io::Result<()> {
    // Its file goes when this ends.
    let AdminSocket { listener, file: _file } = socket;
    tokio::select! {
        served = axum::serve(listener, service(admin)).into_future() => served,
        () = shutdown.draining() => Ok(()),
    }
}
