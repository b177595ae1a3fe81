//! Requests that are refused before their body is read: over HTTP/1.1 and HTTP/2 the client gets the whole response and
//! can use the connection again.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt;
use penstock_router::http::auth::ApiKeys;
use penstock_router::http::server::limits::ConnectionLimits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::identity::Identity;
use crate::support::listening::{PATIENCE, serve};
use crate::support::server::{Server, post};

const PAYLOAD_LIMIT: usize = 500_000;
/// Bytes of a body that is larger than socket buffers and flow-control windows.
const LARGE: usize = 3_000_000;
const JSON: &str = "content-type: application/json\r\n";
const LIMITED: &str = "content-type: application/json\r\nauthorization: Bearer limited\r\n";

fn server() -> Server {
    let mut server = Server::start();
    server.state.body_limits.max_bytes = PAYLOAD_LIMIT;
    server
}

fn guarded() -> Server {
    let mut server = server();
    server.state.api_keys = ApiKeys::load(&["first-key".parse().expect("a key")], None).expect("keys");
    server
}

/// A server on which a key has used up its rate limit.
async fn limiting() -> Server {
    let mut server = server();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "limited requests-per-minute=1\n").expect("written");
    server.state.api_keys = ApiKeys::load(&[], Some(file.path())).expect("keys");
    let mut request = post("/generate", &json!({"inputs": "a", "parameters": {"max_new_tokens": 1}}));
    request.headers_mut().insert("authorization", HeaderValue::from_static("Bearer limited"));
    assert_eq!(server.send(request).await.status, StatusCode::OK);
    server
}

/// Requests that are refused before their body is read: the server, method, path, header fields, and status.
async fn refused() -> Vec<(Server, Method, &'static str, &'static str, StatusCode)> {
    vec![
        (limiting().await, Method::POST, "/generate", LIMITED, StatusCode::TOO_MANY_REQUESTS),
        (guarded(), Method::POST, "/generate", JSON, StatusCode::UNAUTHORIZED),
        (server(), Method::POST, "/nothing/here", JSON, StatusCode::NOT_FOUND),
        (server(), Method::PUT, "/generate", JSON, StatusCode::METHOD_NOT_ALLOWED),
        (server(), Method::POST, "/generate", "", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (server(), Method::POST, "/generate", JSON, StatusCode::PAYLOAD_TOO_LARGE),
    ]
}

/// Reads until the head of a response is complete; returns all bytes read.
async fn head_of(stream: &mut TcpStream) -> String {
    let mut received = Vec::new();
    while !received.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut bytes = [0; 4096];
        let len = tokio::time::timeout(PATIENCE, stream.read(&mut bytes)).await.unwrap().unwrap();
        assert!(len > 0, "closed after {:?}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&bytes[..len]);
    }
    String::from_utf8(received).unwrap()
}

fn head(method: &Method, path: &str, fields: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{fields}")
}

#[tokio::test]
async fn over_http1_the_response_arrives_and_the_connection_stays_open() {
    for (server, method, path, fields, status) in refused().await {
        let address = serve(&server, ConnectionLimits::default());
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = head(&method, path, fields) + &format!("content-length: {LARGE}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; LARGE]).await.unwrap();
        let answer = head_of(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {}", status.as_u16())), "{answer}");
        stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let next = head_of(&mut stream).await;
        assert!(next.contains("HTTP/1.1 200"), "{status}: {next}");
    }
}

#[tokio::test]
async fn over_http2_the_whole_body_is_read() {
    const CHUNK: usize = 10_000;
    for (server, method, path, fields, status) in refused().await {
        let identity = Identity::new();
        let mut sender = identity.http2(identity.serve(&server, ConnectionLimits::default())).await;
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let chunks = (0..LARGE / CHUNK).map(move |_| {
            count.fetch_add(CHUNK, Ordering::Relaxed);
            Ok::<_, Infallible>(Bytes::from_static(&[b' '; CHUNK]))
        });
        let mut request = Request::builder().method(method).uri(format!("https://localhost{path}"));
        for (name, value) in fields.lines().filter_map(|field| field.split_once(": ")) {
            request = request.header(name, value);
        }
        let body = Body::from_stream(tokio_stream::iter(chunks));
        let answer = sender.send_request(request.body(body).unwrap()).await.unwrap();
        assert_eq!(answer.status(), status);
        assert!(!answer.into_body().collect().await.unwrap().to_bytes().is_empty());
        assert_eq!(taken.load(Ordering::Relaxed), LARGE, "{status}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_not_waited_for() {
    let server = server();
    let address = serve(&server, ConnectionLimits::default());
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = head(&Method::POST, "/generate", JSON);
    let head = head + &format!("content-length: {}\r\n\r\n", 8 * PAYLOAD_LIMIT + 1);
    stream.write_all(head.as_bytes()).await.unwrap();
    // The body never arrives, and waiting for it would take longer than `PATIENCE`.
    assert!(head_of(&mut stream).await.starts_with("HTTP/1.1 413"));
}

#[tokio::test]
async fn an_unread_body_is_waited_for_until_the_usual_timeout() {
    let mut server = Server::start();
    server.state.body_limits.timeout = Duration::from_secs(1);
    let mut stream = TcpStream::connect(serve(&server, ConnectionLimits::default())).await.unwrap();
    let started = Instant::now();
    let head = head(&Method::POST, "/nothing/here", JSON) + "content-length: 100\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert!(head_of(&mut stream).await.starts_with("HTTP/1.1 404"));
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_request_with_expect_continue_is_refused_without_its_body() {
    let server = server();
    let address = serve(&server, ConnectionLimits::default());
    for (path, len, status) in
        [("/generate", PAYLOAD_LIMIT + 1, 413), ("/nothing/here", 100, 404), ("/generate", 100, 100)]
    {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = head(&Method::POST, path, JSON);
        let head = head + &format!("content-length: {len}\r\nexpect: 100-continue\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = head_of(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
}
