//! Limits of TCP connections: each is tested below, at and above the limit.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use penstock_router::http::server::limits::ConnectionLimits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::fake_engine::FakeEngine;
use crate::support::listening::{PATIENCE, serve};
use crate::support::server::{Server, facts, limits};

const ALIVE: &[u8] = b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

async fn status_of(stream: &mut TcpStream) -> u16 {
    let mut start = [0; 12];
    stream.read_exact(&mut start).await.expect("an answer");
    std::str::from_utf8(&start[9..]).unwrap().parse().unwrap()
}

/// Sends bytes, and reads until the connection is closed.
async fn talk(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut reply = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut reply)).await;
    // A reset also ends the connection.
    let _ = closed.expect("closed");
    String::from_utf8_lossy(&reply).into_owned()
}

#[tokio::test]
async fn the_number_of_connections_is_limited() {
    let server = Server::start();
    let address = serve(&server, ConnectionLimits { max_connections: 2, ..ConnectionLimits::default() });
    let mut open = Vec::new();
    for expected in [200, 200, 503] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may refuse a connection before the client has sent anything.
        let _ = stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(status_of(&mut stream).await, expected, "connection {}", open.len());
        open.push(stream);
    }
    // A closed connection makes room once the server has noticed.
    open.remove(0);
    let served = async { while !talk(address, ALIVE).await.starts_with("HTTP/1.1 200") {} };
    tokio::time::timeout(PATIENCE, served).await.expect("there is room");
}

#[tokio::test]
async fn a_connection_beyond_the_limit_gets_a_json_error() {
    let server = Server::start();
    let address = serve(&server, ConnectionLimits { max_connections: 1, ..ConnectionLimits::default() });
    // Connections are accepted in the order in which they arrived.
    let _first = TcpStream::connect(address).await.unwrap();
    let mut reply = String::new();
    TcpStream::connect(address).await.unwrap().read_to_string(&mut reply).await.unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("retry-after: 1"), "{head}");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{head} for {}", body.len());
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["error_type"], "overloaded");
}

#[tokio::test]
async fn the_size_of_headers_is_limited() {
    let server = Server::start();
    let max_header_bytes = 8192;
    let address = serve(&server, ConnectionLimits { max_header_bytes, ..ConnectionLimits::default() });
    let frame = "GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-long: \r\n\r\n";
    for (size, expected) in
        [(max_header_bytes - 1, "200"), (max_header_bytes, "200"), (max_header_bytes + 1, "431")]
    {
        let long = format!("x-long: {}", "a".repeat(size - frame.len()));
        let reply = talk(address, frame.replace("x-long: ", &long).as_bytes()).await;
        assert_eq!(&reply[9..12], expected, "{size} bytes: {reply}");
    }
}

#[tokio::test]
async fn a_connection_whose_headers_are_not_complete_in_time_is_closed() {
    let server = Server::start();
    let address = serve(&server, ConnectionLimits { header_timeout: 1, ..ConnectionLimits::default() });
    let started = Instant::now();
    let reply = talk(address, b"GET /health/live HTTP/1.1\r\nhost: ").await;
    assert_eq!(reply, "");
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    // Slow headers are accepted if they are complete in time.
    let mut stream = TcpStream::connect(address).await.unwrap();
    for byte in b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n" {
        stream.write_all(&[*byte]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(status_of(&mut stream).await, 200);
}

#[tokio::test]
async fn a_connection_without_a_request_is_kept_for_the_idle_timeout() {
    let server = Server::start();
    let limits = ConnectionLimits { idle_timeout: 2, header_timeout: 1, ..ConnectionLimits::default() };
    let address = serve(&server, limits);
    for bytes in [&b""[..], b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let started = Instant::now();
        let reply = talk(address, bytes).await;
        assert_eq!(reply.is_empty(), bytes.is_empty());
        assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_connection_that_waits_for_a_response_is_not_idle() {
    let server = Server::with(FakeEngine::gated(facts()), limits());
    let limits = ConnectionLimits { idle_timeout: 1, header_timeout: 1, ..ConnectionLimits::default() };
    let address = serve(&server, limits);
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 4}}).to_string();
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let answer = tokio::spawn(async move { talk(address, request.as_bytes()).await });
    tokio::time::sleep(Duration::from_millis(2500)).await;
    server.allow_steps(100);
    let answer = answer.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_body_that_is_not_complete_in_time_is_refused() {
    let mut server = Server::start();
    server.state.body_limits.timeout = Duration::from_secs(1);
    let address = serve(&server, ConnectionLimits::default());
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
    let reply = talk(address, format!("{head}\r\ncontent-length: 100\r\n\r\n{{").as_bytes()).await;
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
    assert!(reply.contains("\"error_type\":\"body_timeout\""), "{reply}");
}

#[tokio::test]
async fn the_size_of_a_body_is_limited() {
    let server = Server::start();
    let limit = server.state.body_limits.max_bytes;
    let frame = json!({"inputs": "", "parameters": {"max_new_tokens": 1, "truncate": 5}}).to_string();
    for (size, expected) in [(limit - 1, 200), (limit, 200), (limit + 1, 413)] {
        let text = "a".repeat(size - frame.len());
        let body = json!({"inputs": text, "parameters": {"max_new_tokens": 1, "truncate": 5}});
        assert_eq!(server.post("/generate", body).await.status, expected, "{size} bytes");
    }
}

#[tokio::test]
async fn a_client_that_stops_reading_is_disconnected_and_others_are_not_affected() {
    let facts = penstock_router::engine::EngineFacts {
        max_sequence_len: 60_000,
        num_blocks: 40_000,
        eos_token_ids: Vec::new(),
        ..facts()
    };
    let server = Server::with(FakeEngine::new(facts), limits());
    let address = serve(&server, ConnectionLimits { write_timeout: 1, ..ConnectionLimits::default() });
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 50_000}}).to_string();
    let head = "POST /generate_stream HTTP/1.1\r\nhost: x\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let cut_off = async {
        while server.metric("tgi_request_failure{err=\"generation\"}").await
            + server.metric("tgi_request_failure{err=\"dropped\"}").await
            < 1.0
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, cut_off).await.expect("cut off");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received).await;
    // Bytes that the system and this process buffered; the kernel doubles the size that is set.
    assert!(received.len() < 512 << 10, "{} bytes were buffered", received.len());
    let answer =
        server.post("/generate", json!({"inputs": "abc", "parameters": {"max_new_tokens": 5}})).await;
    assert_eq!(answer.status, 200);
}
