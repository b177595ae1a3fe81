//! The end of serving: drain, grace, errors.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::StatusCode;
use penstock_router::base::shutdown::Shutdown;
use penstock_router::http::server::limits::ConnectionLimits;
use penstock_router::http::server::{HttpServer, bind};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::listening::reserve;
use crate::support::server::Server;

#[tokio::test]
async fn draining_refuses_new_requests_and_finishes_running_ones() {
    let server = Server::gated();
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 5}});
    let stream = server.open("/generate_stream", body.clone()).await;
    server.state.inference.shutdown.trigger();
    let refused = server.post("/generate", body).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers["retry-after"], "1");
    let message = "the server is shutting down";
    assert_eq!(refused.json(), json!({"error": message, "error_type": "shutting_down"}));
    assert_eq!(server.get("/health").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(server.get("/health/live").await.status, StatusCode::OK);
    server.allow_steps(100);
    let text = server.expected_text("abc", 5);
    assert!(stream.rest().await.contains(&json!(text).to_string()));
}

#[tokio::test]
async fn requests_that_outlast_the_grace_end_with_an_error() {
    let server = Server::gated();
    let native = server.open("/generate_stream", json!({"inputs": "abc", "parameters": {}})).await;
    let openai = server.open("/v1/completions", json!({"prompt": "abc", "stream": true})).await;
    let whole = server.post("/generate", json!({"inputs": "abc", "parameters": {}}));
    let end = async {
        server.state.inference.shutdown.trigger();
        server.state.inference.shutdown.trigger();
    };
    // The request without streaming is sent before the server begins to stop.
    let (whole, ()) = tokio::join!(biased; whole, end);
    assert_eq!(whole.status, StatusCode::SERVICE_UNAVAILABLE);
    let message = "Request failed during generation: the server is shutting down";
    assert_eq!(whole.json(), json!({"error": message, "error_type": "shutting_down"}));
    let event = json!({"error": message, "error_type": "shutting_down"});
    assert_eq!(native.rest().await, format!("data: {event}\n\n"));
    let openai = openai.rest().await;
    assert!(openai.contains("\"http_status_code\":503"), "{openai}");
    assert!(openai.ends_with("data: [DONE]\n\n"), "{openai}");
}

/// Serves on a TCP port; returns once a stream is open.
async fn open_over_tcp(
    server: &Server,
    address: SocketAddr,
) -> (TcpStream, tokio::task::JoinHandle<std::io::Result<()>>) {
    let listener = bind(address).and_then(|socket| socket.listen(64)).expect("it is reserved");
    let http = HttpServer::new(
        server.service(),
        ConnectionLimits::default(),
        server.state.inference.shutdown.clone(),
    );
    let serving = tokio::spawn(http.serve(listener));
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 4}}).to_string();
    let head = "POST /generate_stream HTTP/1.1\r\nhost: x\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut start = [0; 12];
    stream.read_exact(&mut start).await.expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 200");
    (stream, serving)
}

#[tokio::test]
async fn serving_ends_when_the_last_stream_has_ended() {
    let server = Server::gated();
    let (_holder, address) = reserve();
    let (mut stream, serving) = open_over_tcp(&server, address).await;
    server.state.inference.shutdown.trigger();
    server.allow_steps(100);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("\"generated_text\":\""), "{rest}");
    serving.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn serving_ends_when_the_grace_is_over() {
    let mut server = Server::gated();
    server.state.inference.shutdown = Shutdown::new(Duration::from_millis(10));
    let (_holder, address) = reserve();
    let (mut stream, serving) = open_over_tcp(&server, address).await;
    server.state.inference.shutdown.trigger();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("shutting_down"), "{rest}");
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_that_is_open_without_a_request_gets_an_answer_while_the_server_drains() {
    let server = Server::gated();
    let (_holder, address) = reserve();
    let (mut stream, serving) = open_over_tcp(&server, address).await;
    let mut unused = TcpStream::connect(address).await.unwrap();
    let mut used = TcpStream::connect(address).await.unwrap();
    let body = json!({"inputs": "abc"}).to_string();
    let probe = "GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n";
    let work = format!(
        "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    used.write_all(probe.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    used.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    server.state.inference.shutdown.trigger();
    // By the response on a new connection, the tasks of the others have noticed the drain, too.
    let mut new = TcpStream::connect(address).await.unwrap();
    let mut rest = String::new();
    new.write_all(probe.as_bytes()).await.unwrap();
    new.read_to_string(&mut rest).await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 200"), "{rest}");
    for connection in [&mut unused, &mut used] {
        connection.write_all(work.as_bytes()).await.unwrap();
        let mut refused = String::new();
        connection.read_to_string(&mut refused).await.unwrap();
        assert!(refused.contains("HTTP/1.1 503"), "{refused}");
        assert!(refused.contains("connection: close\r\n") && refused.contains("shutting_down"), "{refused}");
    }
    server.allow_steps(100);
    stream.read_to_string(&mut rest).await.unwrap();
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn idle_connections_do_not_hold_the_shutdown_up() {
    let server = Server::start();
    let (_holder, address) = reserve();
    let (mut stream, serving) = open_over_tcp(&server, address).await;
    // The stream has ended and its connection is kept, like one that was never used.
    let mut response = Vec::new();
    while !response.ends_with(b"0\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut response).await.unwrap(), 0, "it was closed");
    }
    let _unused = TcpStream::connect(address).await.unwrap();
    server.state.inference.shutdown.trigger();
    serving.await.unwrap().unwrap();
}
