//! Serves the gRPC API: puts its services behind the check of API keys, and drains them at a shutdown.

use std::time::Duration;

use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Status};
use tonic_reflection::server::Builder as Reflection;
use tower::layer::util::{Identity, Stack};
use tower::util::MapResponseLayer;

use super::calls::{CallLayer, StartsWork};
use super::connections::{GrpcListener, connections};
use super::pb::inference_server::InferenceServer;
use super::running::Running;
use super::service::Service;
use super::{health, status};
use crate::http::body::BodyLimits;
use crate::http::server::limits::ConnectionLimits;
use crate::http::state::AppState;
use crate::observe::access_log::RequestLog;
use crate::observe::metrics::RequestGuard;

/// The compiled `proto/api.proto`, for reflection.
const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("api.descriptors");
/// A client that vanished without closing its connection is noticed after the sum of both.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Most calls on one connection. The scheduler bounds how many of them generate, and refuses others with a reason.
const MAX_CALLS: u32 = 4096;
/// How long the server waits after the last generation, so that its last messages reach the client.
const FLUSH: Duration = Duration::from_secs(1);

/// Serves until the shutdown is complete. Running calls may end within the time for the shutdown.
pub async fn serve(
    app: AppState,
    limits: ConnectionLimits,
    listener: GrpcListener,
) -> Result<(), tonic::transport::Error> {
    let (running, shutdown) = (Running::default(), app.inference.shutdown.clone());
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(health::report(app.clone(), reporter));
    let server = services(app, &limits, running.clone()).add_service(health);
    let serving = server.serve_with_incoming_shutdown(connections(listener, &limits), shutdown.draining());
    // Wait for generations only: a call that watches the health never ends by itself.
    let ended = async {
        shutdown.draining().await;
        tokio::select! {
            () = running.all_ended() => tokio::time::sleep(FLUSH).await,
            () = shutdown.enforce() => {}
        }
    };
    tokio::select! {
        served = serving => served,
        () = ended => Ok(()),
    }
}

type Response = axum::http::Response<tonic::body::Body>;
/// The services inside the layer that adds the kind of error to responses of tonic itself, and the one around all calls.
type Services = Router<Stack<MapResponseLayer<fn(Response) -> Response>, Stack<CallLayer, Identity>>>;

/// All services that require an API key.
fn services(app: AppState, limits: &ConnectionLimits, running: Running) -> Services {
    let (keys, access_log) = (app.api_keys.clone(), app.access_log.clone());
    let metrics = app.inference.metrics.clone();
    let require_key = move |mut request: Request<()>| {
        let caller = keys.identify(request.metadata().as_ref()).inspect_err(|error| {
            if request.extensions().get::<StartsWork>().is_some() {
                RequestGuard::begin(&metrics).fail(error);
            }
        })?;
        RequestLog::with_current(|log| log.on_caller(&caller));
        request.extensions_mut().insert(caller);
        Ok::<_, Status>(request)
    };
    let BodyLimits { timeout, max_bytes } = app.body_limits;
    let inference = InferenceServer::new(Service { app, running }).max_decoding_message_size(max_bytes);
    let described = || Reflection::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
    let v1 = described().build_v1().expect("a descriptor that was compiled");
    let v1alpha = described().build_v1alpha().expect("a descriptor that was compiled");
    Server::builder()
        .timeout(timeout)
        .max_concurrent_streams(MAX_CALLS)
        .http2_max_header_list_size(u32::try_from(limits.max_header_bytes).ok())
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .layer(CallLayer(access_log))
        .layer(MapResponseLayer::new(status::with_kind as fn(Response) -> Response))
        .add_service(InterceptedService::new(inference, require_key.clone()))
        .add_service(InterceptedService::new(v1, require_key.clone()))
        .add_service(InterceptedService::new(v1alpha, require_key))
}
