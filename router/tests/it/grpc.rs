//! The gRPC API over a real connection: responses, refusals, aborts, information and shutdown.

use std::collections::HashMap;

use futures::StreamExt;
use penstock_router::grpc::pb::generate_request::Prompt;
use penstock_router::grpc::pb::generate_response::Event;
use penstock_router::grpc::pb::inference_client::InferenceClient;
use penstock_router::grpc::pb::{
    AbortRequest, FinishReason, GenerateRequest, GetLoadsRequest, GetModelInfoRequest, Grammar, Sampling,
    Token, TokenIds, grammar,
};
use penstock_router::grpc::{self, GrpcListener};
use penstock_router::http::auth::ApiKeys;
use penstock_router::http::server::limits::ConnectionLimits;
use penstock_router::inference::limits::Limits;
use penstock_scheduler::Admission;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::support::fake_engine::FakeEngine;
use crate::support::server::{Server, facts, limits};

type Served = JoinHandle<Result<(), tonic::transport::Error>>;
type Responses = Streaming<grpc::pb::GenerateResponse>;

async fn serve(server: &Server) -> (Channel, Served) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let listener = GrpcListener { listener, tls: None };
    let served = tokio::spawn(grpc::serve(server.state.clone(), ConnectionLimits::default(), listener));
    (Channel::from_shared(url).expect("a URL").connect().await.expect("it listens"), served)
}

async fn client(server: &Server) -> InferenceClient<Channel> {
    InferenceClient::new(serve(server).await.0)
}

/// A request for the most likely tokens after a text.
fn greedy(text: &str, max_tokens: u64) -> GenerateRequest {
    GenerateRequest {
        prompt: Some(Prompt::Text(text.into())),
        max_tokens: Some(max_tokens),
        sampling: Some(Sampling { temperature: Some(0.0), ..Sampling::default() }),
        ..GenerateRequest::default()
    }
}

async fn events(mut responses: Responses) -> Result<Vec<(u32, Event)>, Status> {
    let mut events = Vec::new();
    while let Some(response) = responses.message().await? {
        events.push((response.index, response.event.expect("every message has an event")));
    }
    Ok(events)
}

fn tokens(events: &[(u32, Event)], index: u32) -> Vec<Token> {
    let of_index = events.iter().filter(|(number, _)| *number == index);
    let token = |(_, event): &(u32, Event)| match event {
        Event::Token(token) => Some(token.clone()),
        Event::Accepted(_) | Event::PromptLogprobs(_) => None,
    };
    of_index.filter_map(token).collect()
}

async fn generate(client: &mut InferenceClient<Channel>, request: GenerateRequest) -> Vec<(u32, Event)> {
    events(client.generate(request).await.expect("accepted").into_inner()).await.expect("a whole stream")
}

#[tokio::test]
async fn a_text_and_its_tokens_generate_the_same() {
    let server = Server::start();
    let mut client = client(&server).await;
    let by_text = generate(&mut client, greedy("abc", 6)).await;
    let ids = server.encode("abc");
    let given = Prompt::TokenIds(TokenIds { ids: ids.clone() });
    let by_ids = generate(&mut client, GenerateRequest { prompt: Some(given), ..greedy("", 6) }).await;
    let found = tokens(&by_text, 0);
    assert_eq!(found, tokens(&by_ids, 0));
    assert_eq!(found.iter().map(|token| token.id).collect::<Vec<_>>(), server.expected("abc", 6));
    let text: String = found.iter().map(|token| token.text.as_str()).collect();
    assert_eq!(text, server.expected_text("abc", 6));
    let finish = found.last().and_then(|token| token.finish.clone()).expect("an end");
    assert_eq!((finish.reason(), finish.completion_tokens, finish.seed), (FinishReason::Length, 6, None));
    let (0, Event::Accepted(accepted)) = &by_text[0] else { panic!("{by_text:?}") };
    assert_eq!((accepted.prompt_tokens as usize, accepted.request_id.len()), (ids.len(), 32));
}

#[tokio::test]
async fn responses_have_the_requested_sequences_logprobs_and_top_tokens() {
    let server = Server::start();
    let request = GenerateRequest {
        n: Some(2),
        top_logprobs: Some(3),
        prompt_logprobs: true,
        sampling: Some(Sampling {
            seed: Some(7),
            logit_bias: HashMap::from([(1, 0.5)]),
            ..Sampling::default()
        }),
        ..greedy("abc", 4)
    };
    let events = generate(&mut client(&server).await, request).await;
    for index in 0..2 {
        let found = tokens(&events, index);
        assert_eq!((found.len(), found[0].top.len(), found[0].top[0].logprob), (4, 3, -0.5));
        let finish = found[3].finish.clone().expect("an end");
        assert_eq!(finish.seed, Some(7 + u64::from(index)));
    }
    let scores = events.iter().find_map(|(_, event)| match event {
        Event::PromptLogprobs(scores) => Some(scores.logprobs.clone()),
        Event::Accepted(_) | Event::Token(_) => None,
    });
    assert_eq!(scores, Some(vec![-1.5; 2]));
}

/// Requests that are refused, with the status code and a part of the message.
fn refusals() -> Vec<(GenerateRequest, Code, &'static str)> {
    let ids = Prompt::TokenIds(TokenIds { ids: vec![100_000] });
    let mut refusals = vec![
        (GenerateRequest::default(), "`prompt` is required: set `text` or `token_ids`"),
        (greedy("", 4), "`prompt` cannot be empty"),
        (
            GenerateRequest { prompt: Some(ids), ..greedy("", 4) },
            "`prompt` must hold token ids below 258. Given: 100000",
        ),
        (greedy("abc", 0), "`max_tokens` must be strictly positive. Given: 0"),
        (greedy(&"a".repeat(250), 4), "(--max-input-tokens). Given: 250"),
        (
            GenerateRequest { n: Some(3), ..greedy("abc", 4) },
            "`n` must be > 0 and <= 2 (--max-best-of). Given: 3",
        ),
        (
            GenerateRequest { top_logprobs: Some(6), ..greedy("abc", 4) },
            "`top_logprobs` must be >= 0 and <= 5 (--max-top-n-tokens). Given: 6",
        ),
        (
            GenerateRequest { request_id: "x".repeat(129), ..greedy("abc", 4) },
            "`request_id` may have at most 128 bytes. Given: 129",
        ),
    ];
    refusals.extend(refused_sampling());
    refusals.extend(refused_grammars());
    let mut refusals: Vec<_> =
        refusals.into_iter().map(|(request, words)| (request, Code::InvalidArgument, words)).collect();
    let other = GenerateRequest { model: Some("other".into()), ..greedy("abc", 4) };
    refusals.push((other, Code::NotFound, "the model `other` does not exist"));
    refusals
}

fn refused_sampling() -> Vec<(GenerateRequest, &'static str)> {
    let sampling = |sampling: Sampling| GenerateRequest { sampling: Some(sampling), ..greedy("abc", 4) };
    vec![
        (
            sampling(Sampling { temperature: Some(f64::NAN), ..Sampling::default() }),
            "`temperature` must be >= 0 and <= 100. Given: NaN",
        ),
        (
            sampling(Sampling { logit_bias: HashMap::from([(9999, 1.0)]), ..Sampling::default() }),
            "`logit_bias` token ids must be < 258. Given: 9999",
        ),
    ]
}

fn refused_grammars() -> Vec<(GenerateRequest, &'static str)> {
    let grammar = |kind| GenerateRequest { grammar: Some(Grammar { kind }), ..greedy("abc", 4) };
    vec![
        (grammar(None), "`grammar` needs one of `json_schema`, `regex` and `lark`"),
        (grammar(Some(grammar::Kind::JsonSchema("{".into()))), "`grammar.json_schema` must be"),
        (grammar(Some(grammar::Kind::Regex("(".into()))), "`grammar` cannot be used"),
        (grammar(Some(grammar::Kind::Lark(String::new()))), "`grammar.lark` must be a string"),
    ]
}

#[tokio::test]
async fn refusals_name_the_field_the_value_and_the_limit() {
    let server = Server::start();
    let mut client = client(&server).await;
    let refusals = refusals();
    let counted = refusals.len() as f64;
    for (request, code, message) in refusals {
        let refused = client.generate(request).await.expect_err(message);
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(refused.message().contains(message), "{refused:?}");
        assert!(refused.metadata().get("error-type").is_some(), "{refused:?}");
    }
    assert_eq!(server.metric("tgi_request_count").await, counted);
}

#[tokio::test]
async fn a_message_beyond_the_payload_limit_is_refused() {
    let server = Server::start();
    let refused = client(&server).await.generate(greedy(&"a".repeat(5000), 4)).await.expect_err("too large");
    assert_eq!(refused.code(), Code::OutOfRange);
    assert!(refused.message().contains("4096"), "{refused:?}");
    assert_eq!(refused.metadata().get("error-type").expect("a kind"), "payload_too_large");
}

#[tokio::test]
async fn requests_beyond_the_queue_limit_get_retry_after() {
    let server = Server::with(FakeEngine::gated(facts()), Limits { max_concurrent_requests: 1, ..limits() });
    let mut client = client(&server).await;
    let _first = client.generate(greedy("abc", 4)).await.expect("accepted");
    let refused = client.generate(greedy("abc", 4)).await.expect_err("no room");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.metadata().get("error-type").expect("a kind"), "overloaded");
    assert_eq!(refused.metadata().get("retry-after").expect("a time"), "1");
    assert_eq!(client.get_loads(GetLoadsRequest {}).await.expect("loads").into_inner().kv_blocks_total, 64);
}

#[tokio::test]
async fn all_services_but_health_need_a_key() {
    let mut server = Server::start();
    server.state.api_keys = ApiKeys::load(&["a-key".parse().expect("a key")], None).expect("keys");
    let (channel, _served) = serve(&server).await;
    let mut client = InferenceClient::new(channel.clone());
    let missing = client.get_model_info(GetModelInfoRequest {}).await.expect_err("no key");
    assert_eq!(missing.code(), Code::Unauthenticated);
    assert!(missing.message().contains("`Authorization: Bearer KEY`"), "{missing:?}");
    let mut request = Request::new(GetModelInfoRequest {});
    request.metadata_mut().insert("authorization", "Bearer a-key".parse().expect("metadata"));
    let info = client.get_model_info(request).await.expect("the key is right").into_inner();
    assert_eq!((info.model_id.as_str(), info.vocab_size, info.max_n), ("org/tiny", 258, 2));
    let mut reflection = ServerReflectionClient::new(channel.clone());
    let asked = reflection.server_reflection_info(futures::stream::empty()).await.expect_err("no key");
    assert_eq!(asked.code(), Code::Unauthenticated);
    assert_eq!(health(&channel).await, ServingStatus::Serving);
}

#[tokio::test]
async fn a_generation_without_a_key_is_counted_once_with_its_reason() {
    let mut server = Server::start();
    server.state.api_keys = ApiKeys::load(&["a-key".parse().expect("a key")], None).expect("keys");
    let mut client = client(&server).await;
    let wrong = |key: &'static str| {
        let mut request = Request::new(greedy("abc", 2));
        request.metadata_mut().insert("authorization", key.parse().expect("metadata"));
        request
    };
    assert_eq!(client.generate(greedy("abc", 2)).await.expect_err("no key").code(), Code::Unauthenticated);
    assert_eq!(client.generate(wrong("Bearer b")).await.expect_err("b").code(), Code::Unauthenticated);
    // This call starts no work.
    client.get_loads(GetLoadsRequest {}).await.expect_err("no key");
    let unauthorized = "tgi_request_failure{err=\"unauthorized\"}";
    assert_eq!(server.metric("tgi_request_count").await, 2.0);
    assert_eq!(server.metric(unauthorized).await, 2.0);
    let served = client.generate(wrong("Bearer a-key")).await.expect("the key is right").into_inner();
    events(served).await.expect("a whole stream");
    let counts = ["tgi_request_count", "tgi_request_success", unauthorized];
    let counts =
        [server.metric(counts[0]).await, server.metric(counts[1]).await, server.metric(counts[2]).await];
    assert_eq!(counts, [3.0, 1.0, 2.0]);
}

/// What the shards got of the request that was admitted last.
fn last_admission(server: &Server) -> Admission {
    let plans = server.control.plans.lock().expect("not poisoned");
    plans.iter().flat_map(|plan| &plan.admitted).next_back().expect("admitted").clone()
}

fn text(events: &[(u32, Event)]) -> String {
    tokens(events, 0).iter().map(|token| token.text.as_str()).collect()
}

#[tokio::test]
async fn a_stop_token_ends_the_text_before_it_or_with_it() {
    let server = Server::start();
    let mut client = client(&server).await;
    let expected = server.expected("abc", 6);
    for include_stop in [false, true] {
        let request = GenerateRequest { stop_token_ids: vec![expected[2]], include_stop, ..greedy("abc", 6) };
        let events = generate(&mut client, request).await;
        let finish = tokens(&events, 0).pop().and_then(|token| token.finish).expect("an end");
        assert_eq!((finish.reason(), finish.completion_tokens), (FinishReason::Stop, 3));
        let shown = &expected[..2 + usize::from(include_stop)];
        assert_eq!(text(&events), server.tokenizer.decode(shown, true).expect("decoded"));
    }
}

#[tokio::test]
async fn tokens_are_excluded_as_on_other_routes() {
    let server = Server::start();
    let mut client = client(&server).await;
    let request = GenerateRequest {
        bad_words: vec!["ab".into(), " c".into()],
        stop_token_ids: vec![7],
        min_tokens: Some(3),
        ..greedy("abc", 6)
    };
    generate(&mut client, request).await;
    let admission = last_admission(&server);
    let spelt = ["ab", " ab", "c", " c"].map(|word| server.encode(word));
    assert_eq!(admission.sampling.exclusions.banned.to_vec(), spelt);
    let eos = server.state.inference.engine.facts().eos_token_ids[0];
    assert_eq!((admission.suppressed.to_vec(), admission.sampling.min_new_tokens), (vec![eos, 7], 3));
    generate(&mut client, GenerateRequest { allowed_token_ids: vec![1, 9], ..greedy("abc", 6) }).await;
    let exclusions = last_admission(&server).sampling.exclusions;
    assert_eq!((0..258).filter(|&id| exclusions.allows(id)).collect::<Vec<_>>(), [1, 9]);
}

#[tokio::test]
async fn a_truncated_prompt_is_the_end_of_the_text() {
    let server = Server::start();
    let mut client = client(&server).await;
    let events = generate(&mut client, GenerateRequest { truncate: Some(2), ..greedy("abc", 6) }).await;
    let (0, Event::Accepted(accepted)) = &events[0] else { panic!("{events:?}") };
    assert_eq!(accepted.prompt_tokens, 2);
    assert_eq!(text(&events), server.expected_text("bc", 6));
    let scored = GenerateRequest { truncate: Some(2), prompt_logprobs: true, ..greedy("abc", 6) };
    let events = generate(&mut client, scored).await;
    let scores = events.iter().find_map(|(_, event)| match event {
        Event::PromptLogprobs(scores) => Some(scores.logprobs.len()),
        Event::Accepted(_) | Event::Token(_) => None,
    });
    assert_eq!(scores, Some(1), "of every token of the prompt but the first");
}

#[tokio::test]
async fn special_tokens_are_shown_if_asked_for() {
    let server = Server::start();
    let mut client = client(&server).await;
    let start = server.tokenizer.token_to_id("<|im_start|>").expect("a token");
    let prompt = (0..2000).map(|number| number.to_string()).find(|prompt| {
        let tokens = server.expected(prompt, 6);
        tokens.len() == 6 && tokens.contains(&start)
    });
    let prompt = prompt.expect("an output with a special token");
    let shown = GenerateRequest { show_special_tokens: true, ..greedy(&prompt, 6) };
    assert!(text(&generate(&mut client, shown).await).contains("<|im_start|>"));
    assert!(!text(&generate(&mut client, greedy(&prompt, 6)).await).contains("<|im_start|>"));
}

#[tokio::test]
async fn token_fields_that_cannot_be_used_are_refused_by_name() {
    let server = Server::start();
    let mut client = client(&server).await;
    for (request, words) in [
        (GenerateRequest { stop_token_ids: vec![258], ..greedy("abc", 4) }, "`stop_token_ids`"),
        (GenerateRequest { stop_token_ids: vec![1; 129], ..greedy("abc", 4) }, "Given: 129"),
        (GenerateRequest { bad_words: vec![String::new()], ..greedy("abc", 4) }, "`bad_words`"),
        (GenerateRequest { allowed_token_ids: vec![258], ..greedy("abc", 4) }, "`allowed_token_ids`"),
        (GenerateRequest { truncate: Some(0), ..greedy("abc", 4) }, "`truncate`"),
        (GenerateRequest { min_tokens: Some(5), ..greedy("abc", 4) }, "`min_tokens`"),
    ] {
        let refused = client.generate(request).await.expect_err(words);
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(refused.message().contains(words), "{refused:?}");
    }
}

async fn health(channel: &Channel) -> ServingStatus {
    let request = HealthCheckRequest { service: "penstock.api.v1.Inference".into() };
    HealthClient::new(channel.clone()).check(request).await.expect("known").into_inner().status()
}

#[tokio::test]
async fn reflection_describes_the_service() {
    let server = Server::start();
    let mut reflection = ServerReflectionClient::new(serve(&server).await.0);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = reflection.server_reflection_info(futures::stream::iter([request])).await.expect("served");
    let answer = answers.into_inner().next().await.expect("one answer").expect("no error");
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else { panic!("a list") };
    assert!(list.service.iter().any(|service| service.name == "penstock.api.v1.Inference"), "{list:?}");
}

#[tokio::test]
async fn health_follows_the_shards() {
    let server = Server::start();
    let channel = serve(&server).await.0;
    let mut watch = HealthClient::new(channel).watch(HealthCheckRequest::default()).await.expect("watched");
    let changes: &mut Streaming<HealthCheckResponse> = watch.get_mut();
    assert_eq!(changes.message().await.expect("open").expect("first").status(), ServingStatus::Serving);
    server.control.break_with("gone");
    let mut client = client(&server).await;
    let _stream = client.generate(greedy("abc", 4)).await.expect("kept");
    assert_eq!(changes.message().await.expect("open").expect("a change").status(), ServingStatus::NotServing);
    server.control.come_back();
    assert_eq!(changes.message().await.expect("open").expect("a change").status(), ServingStatus::Serving);
}

#[tokio::test]
async fn an_aborted_generation_ends_as_cancelled_and_frees_its_slot() {
    let server = Server::gated();
    let mut client = client(&server).await;
    let request = GenerateRequest { request_id: "mine".into(), ..greedy("abc", 100) };
    let stream = client.generate(request.clone()).await.expect("accepted").into_inner();
    let taken = client.generate(request.clone()).await.expect_err("the id is under way");
    assert_eq!(
        (taken.code(), taken.message()),
        (Code::AlreadyExists, "`request_id` is under way. Given: \"mine\"")
    );
    assert_eq!(taken.metadata().get("error-type").expect("a kind"), "request_id_in_use");
    let abort = AbortRequest { request_id: "mine".into() };
    assert!(client.abort(abort.clone()).await.expect("answered").into_inner().aborted);
    assert_eq!(events(stream).await.expect_err("aborted").code(), Code::Cancelled);
    assert!(!client.abort(abort).await.expect("answered").into_inner().aborted);
    server.allow_steps(100);
    let again = GenerateRequest { max_tokens: Some(3), ..request };
    assert_eq!(tokens(&generate(&mut client, again).await, 0).len(), 3);
}

#[tokio::test]
async fn draining_finishes_running_calls_and_refuses_new_ones() {
    let server = Server::gated();
    let (channel, served) = serve(&server).await;
    let mut watch =
        HealthClient::new(channel.clone()).watch(HealthCheckRequest::default()).await.expect("watched");
    let mut client = InferenceClient::new(channel);
    let stream = client.generate(greedy("abc", 5)).await.expect("accepted").into_inner();
    server.state.inference.shutdown.trigger();
    let refused = client.generate(greedy("abc", 5)).await.expect_err("draining");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    server.allow_steps(100);
    assert_eq!(tokens(&events(stream).await.expect("whole"), 0).len(), 5);
    served.await.expect("no panic").expect("a clean end, though health is being watched");
    assert!(watch.get_mut().message().await.is_ok());
}

#[tokio::test]
async fn calls_that_outlast_the_grace_end_as_unavailable() {
    let server = Server::gated();
    let mut client = client(&server).await;
    let stream = client.generate(greedy("abc", 5)).await.expect("accepted").into_inner();
    server.state.inference.shutdown.trigger();
    server.state.inference.shutdown.trigger();
    let ended = events(stream).await.expect_err("cut off");
    assert_eq!(ended.code(), Code::Unavailable);
    assert!(ended.message().contains("the server is shutting down"), "{ended:?}");
}
