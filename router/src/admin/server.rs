//! Serves the routes on the socket.

use std::io;

use super::routes::service;
use super::state::Admin;
use crate::base::private_socket::PrivateSocket;
use crate::base::shutdown::Shutdown;

/// Serves until the server drains.
pub async fn serve(admin: Admin, socket: PrivateSocket, shutdown: Shutdown) -> io::Result<()> {
    // Its file goes when this ends.
    let PrivateSocket { listener, file: _file } = socket;
    tokio::select! {
        served = axum::serve(listener, service(admin)).into_future() => served,
        () = shutdown.draining() => Ok(()),
    }
}
