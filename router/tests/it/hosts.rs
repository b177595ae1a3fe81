//! The header `Host`: HTTP/1.1 asks for exactly one (RFC 9112, 3.2).

use axum::body::Body;
use axum::http::{HeaderValue, Request, Version, header};
use penstock_router::http::server::limits::ConnectionLimits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceExt;

use crate::support::listening::serve;
use crate::support::server::Server;

/// Sends these header lines on a connection of their own; returns status and body.
async fn talk(server: &Server, head: &str) -> (u16, String) {
    let mut stream =
        TcpStream::connect(serve(server, ConnectionLimits::default())).await.expect("it listens");
    stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await.expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, response.split_once("\r\n\r\n").expect("a head").1.to_owned())
}

#[tokio::test]
async fn none_or_two_are_refused_in_the_dialect_of_the_route() {
    let server = Server::start();
    let message = |given: &str| {
        format!(
            "a request must have exactly one `Host` header, with a host and perhaps a port. Given: {given}"
        )
    };
    for (hosts, given) in [("", "none"), ("host: a\r\nhost: a\r\n", "2"), ("host: a\r\nhost: b\r\n", "2")] {
        let native = json!({"error": message(given), "error_type": "invalid_host"});
        for start in ["POST /generate", "GET /health", "GET /nothing", "GET /generate"] {
            let (status, body) = talk(&server, &format!("{start} HTTP/1.1\r\n{hosts}")).await;
            assert_eq!(status, 400, "{start}: {body}");
            assert_eq!(serde_json::from_str::<Value>(&body).expect("JSON"), native, "{start}");
        }
        let (status, body) = talk(&server, &format!("POST /v1/completions HTTP/1.1\r\n{hosts}")).await;
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!((status, &body["error"]["message"]), (400, &json!(message(given))));
        assert_eq!(
            (&body["error"]["type"], &body["error"]["code"]),
            (&json!("invalid_request_error"), &json!("invalid_host"))
        );
    }
    // Three of each were on routes that start work, and are counted there.
    assert_eq!(server.metric("tgi_request_count").await, 6.0);
    assert_eq!(server.metric("tgi_request_failure{err=\"validation\"}").await, 6.0);
}

#[tokio::test]
async fn one_is_enough_even_an_empty_one() {
    let server = Server::start();
    for host in ["a", "a:80", "a:", "a_b.c-d", "[::1]:80", ""] {
        let head = format!("GET /health HTTP/1.1\r\nhost: {host}\r\n");
        assert_eq!(talk(&server, &head).await.0, 200, "{host}");
    }
}

#[tokio::test]
async fn one_that_names_no_host_is_refused() {
    let server = Server::start();
    for host in ["a b", "a/b", "user@a", "a:b", "a:65536", "a:80:80", "[::1", "\u{e9}"] {
        let head = format!("GET /health HTTP/1.1\r\nhost: {host}\r\n");
        let (status, body) = talk(&server, &head).await;
        assert_eq!(status, 400, "{host}: {body}");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body["error_type"], "invalid_host");
        let given = format!("Given: {host:?}");
        assert!(body["error"].as_str().is_some_and(|error| error.ends_with(&given)), "{body}");
    }
}

#[tokio::test]
async fn older_and_newer_versions_may_lack_it_and_may_not_repeat_it() {
    let server = Server::start();
    assert_eq!(talk(&server, "GET /health HTTP/1.0\r\n").await.0, 200);
    assert_eq!(talk(&server, "GET /health HTTP/1.0\r\nhost: a\r\nhost: b\r\n").await.0, 400);
    for (hosts, status) in [(0, 200), (1, 200), (2, 400)] {
        let mut request =
            Request::get("https://a/health").version(Version::HTTP_2).body(Body::empty()).expect("a request");
        for _ in 0..hosts {
            request.headers_mut().append(header::HOST, HeaderValue::from_static("a"));
        }
        let response = server.service().oneshot(request).await.expect("a response");
        assert_eq!(response.status().as_u16(), status, "{hosts}");
    }
}
