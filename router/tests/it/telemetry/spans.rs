//! The spans of requests: names, parents and attributes.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use penstock_router::engine::EngineFacts;
use penstock_router::grpc::pb::generate_request::Prompt;
use penstock_router::grpc::pb::inference_client::InferenceClient;
use penstock_router::grpc::pb::{GenerateRequest, Sampling};
use penstock_router::grpc::{self, GrpcListener};
use penstock_router::http::server::limits::ConnectionLimits;
use penstock_scheduler::StepTimings;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::collector::{Collector, Received, all, names, only, spans_of, trace_to, traced};
use crate::support::fake_engine::FakeEngine;
use crate::support::listening::serve;
use crate::support::server::{Answer, Server, facts, limits};
use crate::support::socket_client::Client;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends a request with a `traceparent` header, as a client that is traced itself.
async fn post_with_parent(server: &Server, path: &str, body: &Value, flags: &str) -> Answer {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .header("x-request-id", "an-id")
        .header("traceparent", format!("00-{TRACE}-{CLIENT}-{flags}"))
        .header("tracestate", "vendor=1");
    server.send(request.body(Body::from(body.to_string())).expect("a request")).await
}

fn generate(tokens: u32) -> Value {
    json!({"inputs": "hello", "parameters": {"max_new_tokens": tokens}})
}

/// The names of all spans below `parent`, in order of time.
fn below(spans: &[Received], parent: &Received) -> Vec<String> {
    let mut found: Vec<_> = spans.iter().filter(|span| span.is_below(parent)).collect();
    found.sort_by_key(|span| span.span.start_time_unix_nano);
    found.iter().map(|span| span.span.name.clone()).collect()
}

#[tokio::test]
async fn the_spans_of_a_request_are_below_the_clients_span() {
    let (server, collector) = traced(Server::start()).await;
    let answer = post_with_parent(&server, "/generate", &generate(6), "01").await;
    assert_eq!(answer.status, StatusCode::OK);
    let spans = spans_of(&server, &collector).await;
    let root = only(&spans, "POST /generate");
    assert_eq!((hex(&root.span.trace_id), hex(&root.span.parent_span_id)), (TRACE.into(), CLIENT.into()));
    assert_eq!(root.span.kind, 2, "SERVER");
    assert!(spans.iter().all(|span| span.span.trace_state == "vendor=1"), "tracestate goes along");
    assert!(spans.iter().all(|span| span.span.trace_id == root.span.trace_id));
    assert_eq!(below(&spans, &root), ["validate", "queue", "prefill", "decode"]);
    assert_eq!(below(&spans, &only(&spans, "validate")), ["tokenize"]);
    assert_eq!(below(&spans, &only(&spans, "prefill")), ["step"]);
    assert_eq!(below(&spans, &only(&spans, "decode")), ["step", "step"], "of five steps, the first two");
    let inside = |span: &Received| {
        root.span.start_time_unix_nano <= span.span.start_time_unix_nano
            && span.span.end_time_unix_nano <= root.span.end_time_unix_nano
    };
    let phases = ["validate", "tokenize", "queue", "prefill", "decode"];
    assert!(phases.iter().all(|name| inside(&only(&spans, name))), "{spans:?}");
}

#[tokio::test]
async fn each_response_on_a_websocket_has_a_span_below_that_of_its_client() {
    let (server, collector) = traced(Server::start()).await;
    let parent = format!("00-{TRACE}-{CLIENT}-01");
    let headers = [("traceparent", parent.as_str()), ("x-request-id", "an-id")];
    let address = serve(&server, ConnectionLimits::default());
    let mut client = Client::connect_with(address, &headers).await.expect("it is open");
    client.answer(json!({"input": "hello", "max_output_tokens": 1})).await;
    client.answer(json!({"input": 7})).await;
    let spans = spans_of(&server, &collector).await;
    let roots = all(&spans, "WebSocket /v1/responses");
    let of = |key: &str| roots.iter().map(|root| root.attribute(key)).collect::<Vec<_>>();
    assert_eq!(of("penstock.request.id"), [Some("an-id-1".to_owned()), Some("an-id-2".to_owned())]);
    assert_eq!(of("error.type"), [None, Some("validation".to_owned())]);
    assert!(roots.iter().all(|root| hex(&root.span.parent_span_id) == CLIENT));
    assert_eq!(below(&spans, &roots[0]), ["validate", "queue", "prefill", "decode"]);
}

#[tokio::test]
async fn attributes_are_those_of_http_and_of_generative_models() {
    let (server, collector) = traced(Server::start()).await;
    post_with_parent(&server, "/generate", &generate(6), "01").await;
    let spans = spans_of(&server, &collector).await;
    let root = only(&spans, "POST /generate");
    for (key, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/generate"),
        ("http.response.status_code", "200"),
        ("penstock.request.id", "an-id"),
        ("gen_ai.provider.name", "penstock"),
        ("gen_ai.operation.name", "text_completion"),
        ("gen_ai.request.model", "org/tiny"),
        ("gen_ai.usage.input_tokens", &server.encode("hello").len().to_string()),
        ("gen_ai.usage.output_tokens", "6"),
        ("gen_ai.usage.cache_read.input_tokens", "0"),
        ("gen_ai.response.finish_reasons", "length"),
    ] {
        assert_eq!(root.attribute(key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(root.attribute("error.type"), None);
    assert_eq!(root.of_process("service.name").as_deref(), Some("text-generation-inference.router"));
    let decode = only(&spans, "decode");
    assert_eq!(decode.attribute("gen_ai.usage.output_tokens").as_deref(), Some("6"));
    let first: f64 =
        decode.attribute("gen_ai.server.time_to_first_token").expect("told").parse().expect("a number");
    assert!(first > 0.0 && first < 5.0, "{first}");
}

#[tokio::test]
async fn spans_of_shards_belong_to_the_process_of_their_rank() {
    let (server, collector) = traced(Server::start()).await;
    let timings = StepTimings { upload_us: 100, forward_us: 2000, sample_us: 30, download_us: 4 };
    *server.control.timings.lock().expect("not poisoned") = timings;
    server.post("/generate", generate(40)).await;
    let spans = spans_of(&server, &collector).await;
    let decode = only(&spans, "decode");
    let steps = all(&spans, "step");
    assert_eq!(steps.len(), 3, "one of the prefill, two of the decode: {:?}", names(&spans));
    for step in &steps {
        assert_eq!(step.of_process("penstock.shard.rank").as_deref(), Some("0"));
        assert_eq!(step.of_process("penstock.component").as_deref(), Some("shard"));
        assert_eq!(step.duration_us(), 2134);
        assert_eq!(below(&spans, step), ["upload", "forward", "sample", "download"]);
    }
    assert!(all(&spans, "forward").iter().all(|span| span.duration_us() == 2000));
    let num_steps: u32 = decode.attribute("penstock.steps").expect("told").parse().expect("a number");
    assert_eq!(num_steps, 39);
    assert_eq!(decode.attribute("penstock.steps.forward_ms").as_deref(), Some("78"));
    assert_eq!(decode.of_process("penstock.component").as_deref(), Some("router"));
}

#[tokio::test]
async fn the_client_decides_on_sampling_and_else_the_ratio() {
    let (collector, address) = Collector::start().await;
    let mut server = Server::start();
    trace_to(&mut server, address, 0.0);
    server.post("/generate", generate(3)).await;
    post_with_parent(&server, "/generate", &generate(3), "00").await;
    assert_eq!(server.get("/info").await.status, StatusCode::OK);
    post_with_parent(&server, "/generate_stream", &generate(3), "01").await;
    let spans = spans_of(&server, &collector).await;
    assert_eq!(all(&spans, "POST /generate").len(), 0);
    assert_eq!(all(&spans, "POST /generate_stream").len(), 1);
    assert!(spans.iter().all(|span| hex(&span.span.trace_id) == TRACE));
}

#[tokio::test]
async fn only_routes_that_start_work_are_traced() {
    let (server, collector) = traced(Server::start()).await;
    for path in ["/health", "/metrics", "/info", "/v1/models"] {
        server.get(path).await;
    }
    server.post("/tokenize", json!({"inputs": "hello"})).await;
    let spans = spans_of(&server, &collector).await;
    assert_eq!(names(&spans), ["POST /tokenize"]);
}

#[tokio::test]
async fn prompts_and_outputs_are_in_no_span() {
    let (server, collector) = traced(Server::start()).await;
    let canary = "CANARY-5d1f";
    let chat = json!({
        "model": format!("http://{canary}/model"),
        "messages": [{"role": "system", "content": canary}, {"role": "user", "content": canary}],
        "max_tokens": 20, "stop": [canary], "user": canary,
    });
    assert_eq!(server.post("/v1/chat/completions", chat).await.status, StatusCode::OK);
    let text = server.expected_text("hello", 20);
    let answer = server.post("/generate", generate(20)).await;
    assert_eq!(answer.json()["generated_text"], text);
    let wrong = json!({"inputs": canary, "parameters": {"grammar": {"type": "regex", "value": format!("{canary}(")}}});
    assert_eq!(server.post("/generate", wrong).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    server.post(&format!("/generate?prompt={canary}"), json!(canary)).await;
    server.post(&format!("/{canary}"), json!(canary)).await;
    let spans = spans_of(&server, &collector).await;
    assert_eq!(all(&spans, "queue").len(), 2, "{:?}", names(&spans));
    let secret = text.get(..8).unwrap_or(&text);
    assert!(collector.was_told("POST /v1/chat/completions"));
    assert!(!collector.was_told(canary) && !collector.was_told(secret), "{spans:?}");
}

#[tokio::test]
async fn a_chat_with_two_choices_has_two_sequences() {
    let (server, collector) = traced(Server::start()).await;
    // It samples: without `ignore_eos` a sequence might end before its length.
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"messages": messages, "max_tokens": 4, "n": 2, "ignore_eos": true});
    server.post("/v1/chat/completions", chat).await;
    let spans = spans_of(&server, &collector).await;
    let root = only(&spans, "POST /v1/chat/completions");
    assert_eq!(root.attribute("gen_ai.operation.name").as_deref(), Some("chat"));
    assert_eq!(root.attribute("gen_ai.response.finish_reasons").as_deref(), Some("length,length"));
    assert_eq!(root.attribute("gen_ai.usage.output_tokens").as_deref(), Some("8"));
    let mut numbers: Vec<_> =
        all(&spans, "decode").iter().map(|span| span.attribute("penstock.sequence")).collect();
    numbers.sort();
    assert_eq!(numbers, [Some("0".into()), Some("1".into())]);
}

#[tokio::test]
async fn spans_of_refusals_and_failures_have_the_kind_of_error() {
    let (server, collector) = traced(Server::start()).await;
    server.post("/generate", json!({"inputs": "", "parameters": {}})).await;
    let spans = spans_of(&server, &collector).await;
    let root = only(&spans, "POST /generate");
    assert_eq!(root.attribute("http.response.status_code").as_deref(), Some("422"));
    assert_eq!(root.attribute("error.type").as_deref(), Some("validation"));
    assert_eq!(root.span.status.clone().unwrap_or_default().code, 0, "not the server's fault");
}

#[tokio::test]
async fn the_spans_of_a_stream_end_when_its_client_disconnects() {
    let (server, collector) = traced(Server::gated()).await;
    let mut stream = server.open("/generate_stream", generate(50)).await;
    server.allow_steps(4);
    assert!(stream.next().await.is_some());
    drop(stream);
    while server.metric("tgi_requests_running").await > 0.0 {
        server.allow_steps(1);
        tokio::task::yield_now().await;
    }
    let spans = spans_of(&server, &collector).await;
    let root = only(&spans, "POST /generate_stream");
    assert_eq!(root.attribute("error.type").as_deref(), Some("dropped"));
    assert!(only(&spans, "decode").is_below(&root));
}

#[tokio::test]
async fn a_loss_of_the_shards_is_an_event_of_the_interrupted_span() {
    let (server, collector) = traced(Server::gated()).await;
    let mut stream = server.open("/generate_stream", generate(8)).await;
    server.allow_steps(3);
    assert!(stream.next().await.is_some());
    server.control.break_with("gone");
    server.allow_steps(1);
    server.wait_for_loss().await;
    server.control.come_back();
    server.allow_steps(100);
    stream.rest().await;
    let spans = spans_of(&server, &collector).await;
    assert_eq!(only(&spans, "decode").events(), ["replayed"]);
    assert_eq!(only(&spans, "decode").attribute("gen_ai.usage.output_tokens").as_deref(), Some("8"));
}

#[tokio::test]
async fn a_preemption_is_an_event_of_the_interrupted_span() {
    let facts = EngineFacts { num_blocks: 12, ..facts() };
    let (server, collector) = traced(Server::with(FakeEngine::new(facts), limits())).await;
    let ask = |inputs: String, tokens: u32| {
        server.post("/generate", json!({"inputs": inputs, "parameters": {"max_new_tokens": tokens}}))
    };
    // After short outputs the scheduler expects short ones, and admits more requests than fit.
    for at in 0..80 {
        ask(format!("{at}"), 1).await;
    }
    futures::future::join_all((0..4).map(|at| ask(format!("{at} hello"), 30))).await;
    let preemptions = server.metric("tgi_preemptions").await;
    let spans = spans_of(&server, &collector).await;
    let events = spans.iter().flat_map(Received::events).filter(|event| *event == "preempted").count();
    assert!(preemptions > 0.0, "nothing was preempted");
    assert_eq!(events as f64, preemptions);
}

#[tokio::test]
async fn a_grpc_call_is_traced_like_an_http_request() {
    let (server, collector) = traced(Server::start()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let listener = GrpcListener { listener, tls: None };
    tokio::spawn(grpc::serve(server.state.clone(), ConnectionLimits::default(), listener));
    let mut client = InferenceClient::connect(url).await.expect("it listens");
    let mut request = tonic::Request::new(GenerateRequest {
        request_id: "mine".into(),
        prompt: Some(Prompt::Text("hello".into())),
        max_tokens: Some(5),
        sampling: Some(Sampling { temperature: Some(0.0), ..Sampling::default() }),
        ..GenerateRequest::default()
    });
    let parent = format!("00-{TRACE}-{CLIENT}-01").parse().expect("metadata");
    request.metadata_mut().insert("traceparent", parent);
    let mut messages = client.generate(request).await.expect("accepted").into_inner();
    while messages.message().await.expect("no error").is_some() {}
    let refused = client.generate(GenerateRequest::default()).await.expect_err("no prompt");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    let spans = spans_of(&server, &collector).await;
    let calls = all(&spans, "penstock.api.v1.Inference/Generate");
    let [call, refused] = calls.as_slice() else { panic!("{:?}", names(&spans)) };
    assert_eq!(hex(&call.span.parent_span_id), CLIENT);
    assert_eq!(below(&spans, call), ["validate", "queue", "prefill", "decode"]);
    assert_eq!(call.attribute("rpc.grpc.status_code").as_deref(), Some("0"));
    assert_eq!(call.attribute("penstock.request.id").as_deref(), Some("mine"));
    assert_eq!(call.attribute("gen_ai.usage.output_tokens").as_deref(), Some("5"));
    assert_eq!(refused.attribute("rpc.grpc.status_code").as_deref(), Some("3"));
}
