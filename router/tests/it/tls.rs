//! HTTPS with generated certificates: HTTP/1.1 and HTTP/2, wrong files, and clients that do not complete the handshake.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, StatusCode, Version};
use http_body_util::BodyExt;
use penstock_router::grpc::pb::GetModelInfoRequest;
use penstock_router::grpc::pb::inference_client::InferenceClient;
use penstock_router::grpc::{self, GrpcListener};
use penstock_router::http::server::limits::ConnectionLimits;
use penstock_router::http::server::tls::TlsFiles;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::support::fake_engine::FakeEngine;
use crate::support::identity::Identity;
use crate::support::listening::PATIENCE;
use crate::support::server::{Server, facts, limits};

fn ask(path: &str) -> Request<Body> {
    Request::get(format!("https://localhost{path}")).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn both_versions_of_http_are_encrypted() {
    let (server, identity) = (Server::start(), Identity::new());
    let address = identity.serve(&server, ConnectionLimits::default());
    let mut stream = identity.connect(address, b"http/1.1").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    let answer = identity.http2(address).await.send_request(ask("/health/live")).await.unwrap();
    assert_eq!((answer.status(), answer.version()), (StatusCode::OK, Version::HTTP_2));
}

#[tokio::test]
async fn a_stream_over_http2_may_last_longer_than_the_idle_timeout() {
    let (server, identity) = (Server::with(FakeEngine::gated(facts()), limits()), Identity::new());
    let limits = ConnectionLimits { idle_timeout: 1, header_timeout: 1, ..ConnectionLimits::default() };
    let address = identity.serve(&server, limits);
    let mut sender = identity.http2(address).await;
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 3}}).to_string();
    let request =
        Request::post("https://localhost/generate_stream").header("content-type", "application/json");
    let answer = sender.send_request(request.body(Body::from(body)).unwrap()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    server.allow_steps(10);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(String::from_utf8_lossy(&text).matches("data:").count(), 3);
    // No request is under way any more: the connection is closed in time.
    let closed = async {
        while !sender.is_closed() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.expect("an idle connection is closed");
}

#[tokio::test]
async fn a_client_that_resets_streams_at_once_loses_its_connection_and_others_are_not_affected() {
    let (server, identity) = (Server::start(), Identity::new());
    let address = identity.serve(&server, ConnectionLimits::default());
    let mut sender = identity.http2(address).await;
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 50}}).to_string();
    for _ in 0..2_000 {
        if sender.ready().await.is_err() {
            break;
        }
        let request = Request::post("https://localhost/generate").header("content-type", "application/json");
        // Dropped before the response, which resets its stream.
        drop(sender.send_request(request.body(Body::from(body.clone())).unwrap()));
        tokio::task::yield_now().await;
    }
    let answer = identity.http2(address).await.send_request(ask("/health")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    while server.metric("tgi_requests_running").await + server.metric("tgi_requests_waiting").await > 0.0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(server.metric("tgi_kv_cache_blocks_used").await, 0.0);
}

#[tokio::test]
async fn a_connection_without_a_handshake_counts_until_the_timeout() {
    let (server, identity) = (Server::start(), Identity::new());
    let limits = ConnectionLimits { max_connections: 1, header_timeout: 1, ..ConnectionLimits::default() };
    let address = identity.serve(&server, limits);
    let started = Instant::now();
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut refused = String::new();
    TcpStream::connect(address).await.unwrap().read_to_string(&mut refused).await.unwrap();
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    let closed = tokio::time::timeout(PATIENCE, silent.read(&mut [0; 8])).await;
    assert_eq!(closed.expect("closed").unwrap(), 0);
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    let answer = identity.http2(address).await.send_request(ask("/health/live")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test]
async fn an_unencrypted_request_gets_no_response() {
    let (server, identity) = (Server::start(), Identity::new());
    let address = identity.serve(&server, ConnectionLimits::default());
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply).await;
    assert!(!reply.starts_with(b"HTTP"), "{reply:?}");
}

/// Serves gRPC with the certificate; returns the address.
async fn serve_grpc(server: &Server, identity: &Identity, limits: ConnectionLimits) -> SocketAddr {
    let files = TlsFiles { cert: &identity.path("cert.pem"), key: &identity.path("key.pem") };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = GrpcListener { listener, tls: Some(files.acceptor().unwrap()) };
    tokio::spawn(grpc::serve(server.state.clone(), limits, listener));
    address
}

#[tokio::test]
async fn grpc_is_encrypted_with_the_same_files() {
    let (server, identity) = (Server::start(), Identity::new());
    let address = serve_grpc(&server, &identity, ConnectionLimits::default()).await;
    let pem = fs::read_to_string(identity.path("cert.pem")).unwrap();
    let trusted = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)).domain_name("localhost");
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(trusted).unwrap();
    let mut client = InferenceClient::new(endpoint.connect().await.unwrap());
    let info = client.get_model_info(GetModelInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.model_id, "org/tiny");
    let plain = InferenceClient::connect(format!("http://{address}")).await;
    let answered = match plain {
        Ok(mut client) => client.get_model_info(GetModelInfoRequest {}).await.is_ok(),
        Err(_) => false,
    };
    assert!(!answered, "what is not encrypted is not answered");
}

#[tokio::test]
async fn a_grpc_connection_without_a_handshake_blocks_no_other() {
    let (server, identity) = (Server::start(), Identity::new());
    let limits = ConnectionLimits { max_connections: 2, ..ConnectionLimits::default() };
    let address = serve_grpc(&server, &identity, limits).await;
    let silent = TcpStream::connect(address).await.unwrap();
    let stream = identity.connect(address, b"h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let still_open = silent.try_read(&mut [0; 8]).unwrap_err().kind();
    assert_eq!(still_open, ErrorKind::WouldBlock, "the other did not have to wait for its end");
}

#[tokio::test]
async fn a_grpc_connection_without_a_handshake_is_closed_after_the_timeout() {
    let (server, identity) = (Server::start(), Identity::new());
    let limits = ConnectionLimits { header_timeout: 1, ..ConnectionLimits::default() };
    let address = serve_grpc(&server, &identity, limits).await;
    let started = Instant::now();
    let mut silent = TcpStream::connect(address).await.unwrap();
    let closed = tokio::time::timeout(PATIENCE, silent.read(&mut [0; 8])).await;
    assert_eq!(closed.expect("closed").unwrap(), 0);
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
}

#[test]
fn errors_about_wrong_files_name_the_file() {
    let (one, other) = (Identity::new(), Identity::new());
    let empty = one.path("empty.pem");
    fs::write(&empty, "nothing\n").unwrap();
    let (cert, key) = (one.path("cert.pem"), one.path("key.pem"));
    let message = |cert: &PathBuf, key: &PathBuf| match (TlsFiles { cert, key }).acceptor() {
        Ok(_) => "fine".to_owned(),
        Err(error) => error.to_string(),
    };
    assert_eq!(message(&cert, &key), "fine");
    assert!(message(&one.path("none"), &key).starts_with("cannot read --tls-cert "));
    assert!(message(&cert, &one.path("none")).starts_with("cannot read --tls-key "));
    assert!(message(&empty, &key).ends_with("empty.pem holds no certificate in PEM format"));
    assert!(message(&cert, &empty).ends_with("empty.pem holds no private key in PEM format"));
    let mixed = message(&cert, &other.path("key.pem"));
    assert!(mixed.contains("cannot be used") && !mixed.contains('\n'), "{mixed}");
}
