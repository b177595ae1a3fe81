//! Sampling of a request that sets no parameters: as in the model's generation config, except on TGI's routes.

use penstock_router::engine::{EngineFacts, GenerationDefaults};
use penstock_scheduler::SamplingParams;
use serde_json::{Value, json};

use crate::support::fake_engine::FakeEngine;
use crate::support::server::{Server, facts, limits};

fn serving(generation_defaults: Option<GenerationDefaults>) -> Server {
    Server::with(FakeEngine::new(EngineFacts { generation_defaults, ..facts() }), limits())
}

fn defaults() -> GenerationDefaults {
    GenerationDefaults {
        do_sample: Some(true),
        temperature: Some(0.5),
        top_k: Some(40),
        top_p: Some(0.25),
        min_p: Some(0.125),
        typical_p: Some(0.75),
        repetition_penalty: Some(1.5),
    }
}

/// The sampling parameters that the shards get for this request.
async fn sampling(server: &Server, path: &str, body: Value) -> SamplingParams {
    let answer = server.post(path, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let plans = server.control.plans.lock().expect("not poisoned");
    let admitted = plans.iter().flat_map(|plan| &plan.admitted);
    SamplingParams { seed: 0, ..admitted.last().expect("something was admitted").sampling.clone() }
}

fn bodies() -> [(&'static str, Value); 4] {
    let messages = json!([{"role": "user", "content": "hi"}]);
    [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2})),
        ("/v1/completions", json!({"prompt": "hi", "max_tokens": 2})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 2, "model": "tgi"})),
        ("/v1/responses", json!({"input": "hi", "max_output_tokens": 2})),
    ]
}

#[tokio::test]
async fn requests_without_parameters_sample_by_the_generation_config() {
    let server = serving(Some(defaults()));
    for (path, body) in bodies() {
        let expected = SamplingParams {
            temperature: 0.5,
            top_k: 40,
            top_p: 0.25,
            min_p: 0.125,
            typical_p: 0.75,
            repetition_penalty: 1.5,
            ..SamplingParams::greedy()
        };
        assert_eq!(sampling(&server, path, body).await, expected, "{path}");
    }
}

#[tokio::test]
async fn parameters_of_a_request_override_the_generation_config() {
    let server = serving(Some(defaults()));
    for (path, mut body) in bodies() {
        body["temperature"] = json!(0.75);
        body["top_p"] = json!(1.0);
        let sent = sampling(&server, path, body).await;
        assert_eq!((sent.temperature, sent.top_p, sent.top_k), (0.75, 1.0, 40), "{path}");
    }
}

#[tokio::test]
async fn typical_p_is_taken_on_openais_routes_within_its_range() {
    let server = serving(Some(defaults()));
    for (path, mut body) in bodies().into_iter().take(2) {
        body["typical_p"] = json!(0.5);
        assert_eq!(sampling(&server, path, body.clone()).await.typical_p, 0.5, "{path}");
        body["typical_p"] = json!(1.5);
        let refused = server.post(path, body).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (400, &json!("typical_p")));
    }
}

#[tokio::test]
async fn a_generation_config_without_sampling_is_greedy() {
    let server = serving(Some(GenerationDefaults { do_sample: Some(false), ..Default::default() }));
    for (path, body) in bodies() {
        assert_eq!(sampling(&server, path, body).await.temperature, 0.0, "{path}");
    }
}

#[tokio::test]
async fn tgis_routes_keep_their_documented_defaults() {
    let server = serving(Some(defaults()));
    let greedy = json!({"inputs": "hi", "parameters": {"max_new_tokens": 2}});
    assert_eq!(sampling(&server, "/generate", greedy).await, SamplingParams::greedy());
    let sampled = sampling(&server, "/generate", json!({"inputs": "hi"})).await;
    assert_eq!(sampled, SamplingParams { temperature: 1.0, ..SamplingParams::greedy() });
}

#[tokio::test]
async fn info_has_the_generation_defaults() {
    let told =
        serving(Some(GenerationDefaults { top_k: Some(7), ..Default::default() })).get("/info").await.json();
    assert_eq!(told["generation_defaults"], json!({"top_k": 7}));
    assert_eq!(serving(None).get("/info").await.json()["generation_defaults"], Value::Null);
}
