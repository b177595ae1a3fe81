//! `/v1/responses` over a WebSocket, with a client of its own over a real connection.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use penstock_router::engine::EngineFacts;
use penstock_router::http::auth::ApiKeys;
use penstock_router::http::server::limits::ConnectionLimits;
use penstock_router::http::socket::SocketRules;
use penstock_router::observe::access_log::AccessLogFormat;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_tungstenite::{MaybeTlsStream, client_async};

use crate::support::fake_engine::FakeEngine;
use crate::support::lines::Access;
use crate::support::listening::{PATIENCE, serve};
use crate::support::server::{Server, facts, limits};
use crate::support::socket_client::{Client, send};

async fn open(server: &Server) -> Client {
    Client::connect(serve(server, ConnectionLimits::default())).await
}

fn with_rules(mut server: Server, change: impl FnOnce(&mut SocketRules)) -> Server {
    let mut rules = (*server.state.socket_rules).clone();
    change(&mut rules);
    server.state.socket_rules = Arc::new(rules);
    server
}

fn greedy(input: Value) -> Value {
    json!({"input": input, "temperature": 0, "max_output_tokens": 5})
}

fn user(text: &str) -> Value {
    json!({"type": "message", "role": "user", "content": text})
}

/// Without what differs from one response to the next.
fn anonymous(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for name in ["id", "item_id", "created_at", "completed_at", "cached_tokens"] {
                fields.remove(name);
            }
            fields.values_mut().for_each(|field| *field = anonymous(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = anonymous(item.take())),
        _ => {}
    }
    value
}

fn text_of(last: &Value) -> &str {
    last["response"]["output"][0]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{last}"))
}

async fn failures(server: &Server, reason: &str) -> f64 {
    server.metric(&format!("tgi_request_failure{{err=\"{reason}\"}}")).await
}

/// Waits until so many requests have failed for this reason.
async fn wait_for_failures(server: &Server, reason: &str, count: f64) {
    let failed = async {
        while failures(server, reason).await < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, failed).await.expect("they fail");
}

#[tokio::test]
async fn responses_are_the_events_of_a_stream_one_after_the_other() {
    let server = Server::start();
    let mut client = open(&server).await;
    for text in ["hello", "another", "hello"] {
        let mut body = greedy(text.into());
        client.ask(body.clone()).await;
        let events: Vec<_> = client.events().await.into_iter().map(anonymous).collect();
        body["stream"] = true.into();
        let streamed = server.post("/v1/responses", body).await.named_events();
        assert_eq!(events, streamed.into_iter().map(|(_, event)| anonymous(event)).collect::<Vec<_>>());
        assert!(events.len() > 5);
    }
    assert_eq!(server.metric("tgi_request_count").await, 6.0);
    assert_eq!(server.metric("tgi_request_success").await, 6.0);
}

#[tokio::test]
async fn the_last_response_is_continued_as_if_its_conversation_was_sent() {
    let server = Server::start();
    let mut client = open(&server).await;
    let first = client.answer(greedy("hello".into())).await;
    let id = first["response"]["id"].as_str().unwrap();
    let mut next = greedy("and then?".into());
    next["previous_response_id"] = id.into();
    let continued = client.answer(next.clone()).await;
    assert_eq!(continued["response"]["previous_response_id"], id);
    let reply = &first["response"]["output"][0];
    let whole = greedy(json!([user("hello"), reply, user("and then?")]));
    let whole = server.post("/v1/responses", whole).await.json();
    for field in ["usage", "output"] {
        assert_eq!(anonymous(continued["response"][field].clone()), anonymous(whole[field].clone()));
    }
    // It is the last one no longer.
    let error = client.answer(next).await;
    let expected = json!({"type": "error", "status": 400, "error": {
        "message": format!("the response {id:?} cannot be continued: it is not the last one of this connection, or continuing it has failed"),
        "type": "invalid_request_error", "param": "previous_response_id", "code": "previous_response_not_found",
    }});
    assert_eq!(error, expected);
    let mut third = greedy("go on".into());
    third["previous_response_id"] = continued["response"]["id"].clone();
    assert_eq!(client.answer(third).await["type"], "response.incomplete");
}

#[tokio::test]
async fn a_continuation_that_fails_is_not_continued_and_other_connections_know_nothing() {
    let server = Server::start();
    let address = serve(&server, ConnectionLimits::default());
    let (mut client, mut other) = (Client::connect(address).await, Client::connect(address).await);
    let first = client.answer(greedy("hello".into())).await;
    let after = |mut body: Value| {
        body["previous_response_id"] = first["response"]["id"].clone();
        body
    };
    let orphan = json!([{"type": "function_call_output", "call_id": "none", "output": "7"}]);
    let error = |event: Value| event["error"]["code"].as_str().unwrap_or_default().to_owned();
    assert_eq!(error(other.answer(after(greedy("x".into()))).await), "previous_response_not_found");
    let refused = client.answer(after(greedy(orphan.clone()))).await;
    assert_eq!(refused["error"]["param"], "input[0].call_id");
    assert_eq!(error(client.answer(after(greedy("x".into()))).await), "previous_response_not_found");
    // So is one that is refused before the conversation is looked up, but not another request.
    let first = client.answer(greedy("hello".into())).await;
    let mut next = greedy("x".into());
    assert_eq!(error(client.answer(json!({"input": 7})).await), "validation");
    next["previous_response_id"] = first["response"]["id"].clone();
    let mut wrong = next.clone();
    wrong["temperature"] = "hot".into();
    assert_eq!(error(client.answer(wrong).await), "validation");
    assert_eq!(error(client.answer(next).await), "previous_response_not_found");
    let answer = server.post("/v1/responses", greedy(orphan)).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["param"].clone()),
        (400, "input[0].call_id".into())
    );
}

#[tokio::test]
async fn a_message_that_is_refused_leaves_the_connection_open() {
    let server = Server::start();
    let mut client = open(&server).await;
    let create = |fields: Value| {
        let mut message = json!({"type": "response.create", "input": "hi"});
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        Message::from(message.to_string())
    };
    let cases: Vec<(Message, Value, &str)> = vec![
        ("{".into(), Value::Null, "malformed_json"),
        ("".into(), Value::Null, "malformed_json"),
        ("[]".into(), Value::Null, "validation"),
        (Message::binary(b"{}".to_vec()), Value::Null, "malformed_json"),
        ("{}".into(), "type".into(), "validation"),
        (create(json!({"type": "response.cancel"})), "type".into(), "validation"),
        (create(json!({"type": 7})), "type".into(), "validation"),
        (create(json!({"input": 7})), "input".into(), "validation"),
        (create(json!({"stream": false})), "stream".into(), "validation"),
        (create(json!({"stream": "x"})), "stream".into(), "validation"),
        (create(json!({"background": true})), "background".into(), "not_supported"),
        (create(json!({"generate": false})), "generate".into(), "not_supported"),
        (create(json!({"stream_id": "a"})), "stream_id".into(), "not_supported"),
        (create(json!({"temperature": -1})), "temperature".into(), "validation"),
        (create(json!({"model": "other"})), "model".into(), "model_not_found"),
    ];
    for (number, (message, param, code)) in cases.into_iter().enumerate() {
        client.send(message.clone()).await;
        let event = client.event().await;
        assert_eq!(
            (&event["type"], &event["error"]["param"]),
            (&json!("error"), &param),
            "{message} {event}"
        );
        assert_eq!(event["error"]["code"], code, "{message} {event}");
        assert!(event["status"] == 400 || event["status"] == 404, "{event}");
        assert_eq!(failures(&server, "validation").await, number as f64 + 1.0, "{message}");
    }
    client
        .send(create(json!({"stream": true, "generate": true, "max_output_tokens": 1, "stream_id": null})))
        .await;
    assert_eq!(client.end().await["type"], "response.incomplete");
    assert_eq!(server.metric("tgi_request_success").await, 1.0);
}

#[tokio::test]
async fn what_is_no_frame_ends_the_connection() {
    let server = Server::start();
    let mut client = open(&server).await;
    let MaybeTlsStream::Plain(stream) = client.stream.get_mut() else { panic!("there is no TLS") };
    stream.write_all(b"\x83\x80\0\0\0\0").await.unwrap();
    assert_eq!(client.close_code().await, CloseCode::Protocol);
}

#[tokio::test]
async fn a_message_above_the_limit_ends_the_connection() {
    let server = Server::start();
    let limit = server.state.socket_rules.max_bytes;
    let address = serve(&server, ConnectionLimits::default());
    let empty = json!({"type": "response.create", "input": "", "truncation": "auto", "max_output_tokens": 1});
    for size in [limit - 1, limit, limit + 1] {
        let mut client = Client::connect(address).await;
        let mut message = empty.clone();
        message["input"] = "a".repeat(size - empty.to_string().len()).into();
        client.send(message.to_string()).await;
        let event = client.end().await;
        if size <= limit {
            assert_ne!(event["error"]["code"], "payload_too_large", "{size}");
            continue;
        }
        assert_eq!((&event["status"], &event["error"]["code"]), (&json!(413), &json!("payload_too_large")));
        assert_eq!(client.close_code().await, CloseCode::Size);
    }
    assert_eq!(server.metric("tgi_request_count").await, 3.0);
}

#[tokio::test]
async fn a_socket_opens_for_who_has_a_key_and_for_pages_of_the_server() {
    let mut server = Server::start();
    server.state.api_keys = ApiKeys::load(&["a-key".parse().unwrap()], None).unwrap();
    let address = serve(&server, ConnectionLimits::default());
    let (own, key) = (format!("http://{address}"), ("authorization", "Bearer a-key"));
    for (headers, expected) in [
        (vec![], 401),
        (vec![("authorization", "Bearer b")], 401),
        (vec![key, ("origin", "http://elsewhere")], 403),
        (vec![key, ("origin", own.as_str())], 101),
        (vec![key], 101),
    ] {
        let status = match Client::connect_with(address, &headers).await {
            Ok(mut client) => {
                assert_eq!(client.answer(greedy("hi".into())).await["type"], "response.incomplete");
                101
            }
            Err(SocketError::Http(response)) => response.status().as_u16(),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(status, expected, "{headers:?}");
    }
    let plain = Server::start().get("/v1/responses").await;
    assert_eq!(
        (plain.status.as_u16(), plain.json()["error"]["code"].clone()),
        (405, "method_not_allowed".into())
    );
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_ends_its_request() {
    for closes in [false, true] {
        let server = Server::gated();
        let mut client = open(&server).await;
        client.ask(json!({"input": "hello", "max_output_tokens": 50})).await;
        while server.control.plans.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if closes {
            client.send(Message::Close(None)).await;
        }
        drop(client);
        wait_for_failures(&server, "dropped", 1.0).await;
        server.allow_steps(100);
        // The next request is alone: what the other has left is computed no further.
        assert_eq!(server.post("/v1/responses", greedy("other".into())).await.status, 200);
        assert_eq!(server.metric("tgi_requests_running").await, 0.0);
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_off() {
    let facts =
        EngineFacts { max_sequence_len: 60_000, num_blocks: 40_000, eos_token_ids: Vec::new(), ..facts() };
    let server = Server::with(FakeEngine::new(facts), limits());
    let address = serve(&server, ConnectionLimits { write_timeout: 1, ..ConnectionLimits::default() });
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(address).await.unwrap();
    let (mut client, _) = client_async(format!("ws://{address}/v1/responses"), stream).await.unwrap();
    let message = json!({"type": "response.create", "input": "abc", "max_output_tokens": 50_000});
    send(&mut client, Message::from(message.to_string())).await.unwrap();
    let cut_off = async {
        while failures(&server, "generation").await + failures(&server, "dropped").await < 1.0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, cut_off).await.expect("cut off");
    assert_eq!(server.post("/v1/responses", greedy("other".into())).await.status, 200);
}

#[tokio::test]
async fn a_drain_lets_the_running_response_end_and_closes_the_sockets() {
    let server = Server::gated();
    let address = serve(&server, ConnectionLimits::default());
    let (mut idle, mut running) = (Client::connect(address).await, Client::connect(address).await);
    running.ask(greedy("hello".into())).await;
    assert_eq!(running.event().await["type"], "response.created");
    server.state.inference.shutdown.trigger();
    assert_eq!(idle.close_code().await, CloseCode::Away);
    match Client::connect_with(address, &[]).await {
        Err(SocketError::Http(response)) => assert_eq!(response.status(), 503),
        other => panic!("{:?}", other.map(|_| ())),
    }
    server.allow_steps(100);
    assert!(!text_of(&running.end().await).is_empty());
    assert_eq!(running.close_code().await, CloseCode::Away);
    drop((idle, running));
    let closed = async { while TcpStream::connect(address).await.is_ok() {} };
    timeout(PATIENCE, closed).await.expect("the server has ended");
}

#[tokio::test]
async fn a_response_that_outlasts_the_grace_fails() {
    let server = Server::gated();
    let mut client = open(&server).await;
    client.ask(greedy("hello".into())).await;
    assert_eq!(client.event().await["type"], "response.created");
    server.state.inference.shutdown.trigger();
    server.state.inference.shutdown.trigger();
    let last = client.end().await;
    assert_eq!(last["type"], "response.failed");
    assert_eq!(client.close_code().await, CloseCode::Away);
}

#[tokio::test]
async fn messages_that_come_early_wait_in_order_and_only_a_few() {
    let server = Server::gated();
    let mut client = open(&server).await;
    let lengths = [1, 2, 3, 4, 5];
    for count in lengths {
        client.ask(json!({"input": "hello", "temperature": 0, "max_output_tokens": count})).await;
    }
    server.allow_steps(100);
    for count in lengths {
        let usage = client.end().await["response"]["usage"]["output_tokens"].clone();
        assert_eq!(usage, count);
    }
    let server = Server::gated();
    let mut client = open(&server).await;
    client.ask(greedy("hello".into())).await;
    assert_eq!(client.event().await["type"], "response.created");
    for _ in 0..5 {
        client.ask(greedy("hello".into())).await;
    }
    let last = loop {
        if let Message::Close(frame) = client.message().await {
            break frame.unwrap();
        }
    };
    assert_eq!(last.code, CloseCode::Policy);
}

#[tokio::test]
async fn a_client_that_answers_pings_stays_and_a_silent_one_does_not() {
    let server = with_rules(Server::start(), |rules| rules.max_silence = Duration::from_secs(3));
    let address = serve(&server, ConnectionLimits { idle_timeout: 1, ..ConnectionLimits::default() });
    let (mut silent, mut there) = (Client::connect(address).await, Client::connect(address).await);
    // Pings are answered while the client waits for a message.
    assert!(timeout(Duration::from_millis(6500), there.message()).await.is_err());
    assert_eq!(there.answer(greedy("hi".into())).await["type"], "response.incomplete");
    // The end is there before it is read, and so may be a reset.
    let ended = async { while let Some(Ok(Message::Ping(_))) = silent.stream.next().await {} };
    timeout(PATIENCE, ended).await.expect("it is closed");
}

#[tokio::test]
async fn an_old_connection_is_closed_after_its_response() {
    let server = with_rules(Server::gated(), |rules| rules.max_age = Duration::from_secs(3));
    let mut client = open(&server).await;
    client.ask(greedy("hello".into())).await;
    tokio::time::sleep(Duration::from_millis(3100)).await;
    server.allow_steps(100);
    assert_eq!(client.end().await["type"], "response.incomplete");
    assert_eq!(client.event().await["error"]["code"], "websocket_connection_limit_reached");
    assert_eq!(client.close_code().await, CloseCode::Normal);
}

#[tokio::test]
async fn a_socket_counts_as_a_connection_until_it_ends() {
    let server = Server::start();
    let address = serve(&server, ConnectionLimits { max_connections: 1, ..ConnectionLimits::default() });
    let mut client = Client::connect(address).await;
    client.answer(greedy("hi".into())).await;
    assert!(Client::connect_with(address, &[]).await.is_err());
    drop(client);
    let opened = async { while Client::connect_with(address, &[]).await.is_err() {} };
    timeout(PATIENCE, opened).await.expect("there is room");
}

#[tokio::test]
async fn each_response_is_limited_and_logged_like_a_request() {
    let mut server = Server::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a-key tenant=shop requests-per-minute=2\n").unwrap();
    server.state.api_keys = ApiKeys::load(&[], Some(file.path())).unwrap();
    let access = Access::of(&mut server, AccessLogFormat::Json);
    let address = serve(&server, ConnectionLimits::default());
    let headers = [("authorization", "Bearer a-key"), ("x-request-id", "mine")];
    let mut client = Client::connect_with(address, &headers).await.unwrap();
    for _ in 0..2 {
        assert_eq!(client.answer(greedy("hi".into())).await["type"], "response.incomplete");
    }
    let error = client.answer(greedy("hi".into())).await;
    assert_eq!((&error["status"], &error["error"]["code"]), (&json!(429), &json!("rate_limit_exceeded")));
    drop(client);
    let mut lines = access.lines().await;
    while lines.len() < 4 {
        lines = access.lines().await;
    }
    let of =
        |line: &Value| ["request_id", "method", "status", "tenant", "error"].map(|name| line[name].clone());
    let expected = [
        json!(["mine", "GET", 101, "shop", null]),
        json!(["mine-1", "WebSocket", 200, "shop", null]),
        json!(["mine-2", "WebSocket", 200, "shop", null]),
        json!(["mine-3", "WebSocket", 429, "shop", "rate_limit_exceeded"]),
    ];
    assert_eq!(json!(lines.iter().map(of).collect::<Vec<_>>()), json!(expected));
    assert_eq!(lines[1]["generated_tokens"], 5);
}
