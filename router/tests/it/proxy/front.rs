//! A proxy on a port of its own, and a client of it.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use clap::Parser;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use penstock_router::base::shutdown::Shutdown;
use penstock_router::http::server::bind;
use penstock_router::proxy;
use penstock_router::proxy::options::ProxyConfig;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::listening::PATIENCE;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    config: ProxyConfig,
}

pub fn config(urls: &[String], flags: &[&str]) -> ProxyConfig {
    let upstreams = urls.iter().map(|url| format!("--upstream={url}"));
    let line = std::iter::once("proxy".to_owned()).chain(upstreams);
    Cli::parse_from(line.chain(flags.iter().map(|&flag| flag.to_owned()))).config
}

pub struct Front {
    pub address: SocketAddr,
    pub shutdown: Shutdown,
    client: Client<HttpConnector, Body>,
}

/// A whole response.
#[derive(Debug)]
pub struct Whole {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Whole {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Front {
    /// Returns when each upstream was looked at once.
    pub async fn start(urls: &[String], flags: &[&str]) -> Self {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap().listen(64).unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::new(Duration::from_secs(3600));
        let serving = proxy::serve(config(urls, flags), listener, shutdown.clone());
        tokio::spawn(async { serving.await.unwrap() });
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        let front = Self { address, shutdown, client };
        // It answers when it serves, whatever the upstreams do.
        assert_eq!(front.get("/health/live").await.status, StatusCode::OK);
        front
    }

    pub async fn open(&self, request: Request<Body>) -> axum::http::Response<Incoming> {
        timeout(PATIENCE, self.client.request(request)).await.expect("an answer").unwrap()
    }

    pub async fn send(&self, request: Request<Body>) -> Whole {
        let (parts, body) = self.open(request).await.into_parts();
        let body = timeout(PATIENCE, body.collect()).await.expect("an end").unwrap().to_bytes();
        Whole { status: parts.status, headers: parts.headers, body }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub async fn get(&self, path: &str) -> Whole {
        self.send(Request::get(self.url(path)).body(Body::empty()).unwrap()).await
    }

    pub fn request(&self, path: &str, body: &Value) -> Request<Body> {
        let request = Request::post(self.url(path)).header("content-type", "application/json");
        request.body(Body::from(body.to_string())).unwrap()
    }

    pub async fn post(&self, path: &str, body: &Value) -> Whole {
        self.send(self.request(path, body)).await
    }

    /// Asks for a completion of this prompt; the text of the answer.
    pub async fn complete(&self, prompt: &str) -> String {
        let answer = self.post("/v1/completions", &json!({ "prompt": prompt })).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.text().to_owned()
    }

    pub async fn metric(&self, line: &str) -> f64 {
        let metrics = self.get("/metrics").await;
        let value = metrics.text().lines().find_map(|it| it.strip_prefix(&format!("{line} ")));
        value.unwrap_or_else(|| panic!("no {line} in {}", metrics.text())).parse().unwrap()
    }

    /// Waits until so many upstreams take requests.
    pub async fn wait_for_ready(&self, urls: &[String], num_ready: usize) {
        let ready = async {
            loop {
                let mut sum = 0.0;
                for url in urls {
                    sum += self.metric(&format!("tgi_upstream_ready{{upstream=\"{url}\"}}")).await;
                }
                if sum as usize == num_ready {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, ready).await.expect("their state is noticed");
    }
}
