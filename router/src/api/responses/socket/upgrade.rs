//! Opens the WebSocket.

use std::net::SocketAddr;

use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{ConnectInfo, State};
use axum::http::HeaderMap;
use axum::response::Response;
use penstock_scheduler::Refused;

use super::session::{PATH, Session};
use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::base::request_id::RequestId;
use crate::http::server::RequestInFlight;
use crate::http::socket::Channel;
use crate::http::state::AppState;
use crate::observe::telemetry::remote_parent;

/// `GET /v1/responses`, which has to ask for a WebSocket. The socket counts as a request in flight of its connection.
pub async fn open(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    in_flight: Option<Extension<RequestInFlight>>,
    client: Option<Extension<ConnectInfo<SocketAddr>>>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Error> {
    let upgrade = app.socket_rules.limit(upgrade.map_err(|rejection| refusal(&rejection))?);
    app.socket_rules.check_origin(&headers)?;
    if app.inference.shutdown.is_draining() {
        return Err(Error::Refused(Refused::ShuttingDown));
    }
    let (rules, shutdown) = (app.socket_rules.clone(), app.inference.shutdown.clone());
    let address = client.map(|Extension(ConnectInfo(address))| address.ip());
    let session = Session::new(app, caller, id, address, remote_parent(&headers));
    let serve = async move |socket: WebSocket| {
        let _in_flight = in_flight;
        session.run(Channel::new(socket, rules, shutdown)).await;
    };
    Ok(upgrade.on_upgrade(serve))
}

fn refusal(rejection: &WebSocketUpgradeRejection) -> Error {
    match rejection {
        WebSocketUpgradeRejection::InvalidWebSocketVersionHeader(_) => {
            Error::invalid("sec-websocket-version", "`sec-websocket-version` must be 13")
        }
        WebSocketUpgradeRejection::WebSocketKeyHeaderMissing(_) => {
            Error::invalid("sec-websocket-key", "`sec-websocket-key` is required")
        }
        _ => Error::MethodNotAllowed { method: "GET".to_owned(), path: PATH.to_owned() },
    }
}
