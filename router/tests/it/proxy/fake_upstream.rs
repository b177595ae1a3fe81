//! A server in the place of a whole one, for speed and for faults that a real one has by chance only: it answers as a test
//! says. The real ones are in tests/e2e/test_upstreams.py.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::stream;
use http_body_util::BodyExt;
use penstock_router::http::server::bind;
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;

/// What an upstream answers to the next request.
pub enum Act {
    /// Its name, or this.
    Answer(Box<dyn FnOnce() -> Response + Send>),
    /// These parts of a body of this type; the connection breaks behind them.
    Break(&'static str, Vec<&'static str>),
    /// These events of a stream, each when the gate lets it pass.
    Gated(Vec<&'static str>),
}

#[derive(Default)]
struct Known {
    acts: VecDeque<Act>,
    requests: Vec<(Parts, Bytes)>,
    is_refusing: bool,
}

/// One upstream, which can be asked what came.
#[derive(Clone)]
pub struct FakeUpstream {
    pub name: &'static str,
    pub address: SocketAddr,
    pub gate: Arc<Semaphore>,
    known: Arc<Mutex<Known>>,
}

impl FakeUpstream {
    pub fn start(name: &'static str) -> Self {
        Self::start_on(name, bind("127.0.0.1:0".parse().unwrap()).unwrap())
    }

    /// On a socket that is bound, and does not listen yet.
    pub fn start_on(name: &'static str, socket: TcpSocket) -> Self {
        let listener = socket.listen(64).unwrap();
        let address = listener.local_addr().unwrap();
        let (gate, known) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::default()));
        let upstream = Self { name, address, gate, known };
        let service = Router::new().fallback(answer).with_state(upstream.clone());
        tokio::spawn(async move { axum::serve(listener, service).await });
        upstream
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it does with its next requests; then it answers with its name.
    pub fn next(&self, acts: impl IntoIterator<Item = Act>) {
        self.known.lock().unwrap().acts.extend(acts);
    }

    /// Its health says that it takes no requests, as while it drains.
    pub fn refuse(&self, is_refusing: bool) {
        self.known.lock().unwrap().is_refusing = is_refusing;
    }

    /// The requests that came since the last call, but for those about its health.
    pub fn requests(&self) -> Vec<(Parts, Bytes)> {
        std::mem::take(&mut self.known.lock().unwrap().requests)
    }

    /// It answers with its name again.
    pub fn forget_acts(&self) {
        self.known.lock().unwrap().acts.clear();
    }

    pub fn num_requests(&self) -> usize {
        self.requests().len()
    }
}

pub fn refusal(status: StatusCode) -> Act {
    Act::Answer(Box::new(move || (status, [("retry-after", "7")], "busy").into_response()))
}

async fn answer(State(upstream): State<FakeUpstream>, request: Request<Body>) -> Response {
    if request.uri().path() == "/health" {
        let is_refusing = upstream.known.lock().unwrap().is_refusing;
        let status = if is_refusing { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        return status.into_response();
    }
    if request.uri().path() == "/metrics" {
        let labels = r#"model_name="m",block_size="16",num_gpu_blocks="1000""#;
        return format!("vllm:cache_config_info{{{labels}}} 1\n").into_response();
    }
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let act = {
        let mut known = upstream.known.lock().unwrap();
        known.requests.push((parts, body));
        known.acts.pop_front()
    };
    match act {
        None => upstream.name.into_response(),
        Some(Act::Answer(response)) => response(),
        Some(Act::Break(content_type, parts)) => broken(content_type, parts),
        Some(Act::Gated(events)) => gated(&upstream, events),
    }
}

fn broken(content_type: &'static str, parts: Vec<&'static str>) -> Response {
    let parts = parts.into_iter().map(|part| Ok(Bytes::from(part)));
    let parts = stream::unfold(parts.chain([Err(io::Error::other("killed"))]), |mut parts| async {
        // Each part is sent before the next is asked for.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        Some((parts.next()?, parts))
    });
    ([("content-type", content_type)], Body::from_stream(parts)).into_response()
}

fn gated(upstream: &FakeUpstream, events: Vec<&'static str>) -> Response {
    let state = (Arc::clone(&upstream.gate), events.into_iter());
    let events = stream::unfold(state, |(gate, mut events)| async {
        gate.acquire().await.unwrap().forget();
        Some((Ok::<_, io::Error>(Bytes::from(events.next()?)), (gate, events)))
    });
    ([("content-type", "text/event-stream")], Body::from_stream(events)).into_response()
}
