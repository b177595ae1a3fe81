//! Serves the gRPC API: its services, behind the keys.

use std::time::Duration;

use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Status};
use tonic_reflection::server::Builder as Reflection;
use tower::layer::util::{Identity, Stack};
use tower::util::MapResponseLayer;

use super::connections::{Entrance, connections};
use super::pb::inference_server::InferenceServer;
use super::running::Running;
use super::service::Service;
use super::{health, status};
use crate::http::body::BodyLimits;
use crate::http::server::limits::ConnectionLimits;
use crate::http::state::AppState;

/// `proto/api.proto`, compiled.
const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("api.descriptors");
/// A client that is gone without a word is noticed after these.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls on one connection; how many of them generate is the scheduler's business, which refuses with a reason.
const MAX_CALLS: u32 = 4096;
/// After the last generation, time for what was said of it to reach its client.
const FLUSH: Duration = Duration::from_secs(1);

/// Serves until the shutdown is complete: calls under way go on, within the grace.
pub async fn serve(
    app: AppState,
    limits: ConnectionLimits,
    entrance: Entrance,
) -> Result<(), tonic::transport::Error> {
    let (running, shutdown) = (Running::default(), app.inference.shutdown.clone());
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(health::report(app.clone(), reporter));
    let server = services(app, &limits, running.clone()).add_service(health);
    let serving = server.serve_with_incoming_shutdown(connections(entrance, &limits), shutdown.draining());
    // A watch of health never ends by itself: what is waited for are generations.
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

type Answer = axum::http::Response<tonic::body::Body>;
/// Everything behind the layer that gives every refusal its kind.
type Services = Router<Stack<MapResponseLayer<fn(Answer) -> Answer>, Identity>>;

/// Everything that asks for a key.
fn services(app: AppState, limits: &ConnectionLimits, running: Running) -> Services {
    let keys = app.api_keys.clone();
    let ask = move |mut request: Request<()>| {
        let caller = keys.identify(request.metadata().as_ref())?;
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
        .layer(MapResponseLayer::new(status::with_kind as fn(Answer) -> Answer))
        .add_service(InterceptedService::new(inference, ask.clone()))
        .add_service(InterceptedService::new(v1, ask.clone()))
        .add_service(InterceptedService::new(v1alpha, ask))
}
