//! A router over fake shards, with a generated tokenizer. Tests send it requests and get statuses, headers and bodies.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use futures::StreamExt;
use penstock_router::api::service::service;
use penstock_router::base::shutdown::Shutdown;
use penstock_router::chat::ChatFormat;
use penstock_router::chat::template::ChatTemplates;
use penstock_router::engine::adapters::{AdapterLimits, AdapterRecord, Adapters, RunTimeRules};
use penstock_router::engine::generation::EngineStatus;
use penstock_router::engine::trainer::Trainers;
use penstock_router::engine::weights::WeightsRules;
use penstock_router::engine::{Engine, EngineFacts, engine_loop};
use penstock_router::grammar::Grammars;
use penstock_router::http::auth::ApiKeys;
use penstock_router::http::body::BodyLimits;
use penstock_router::http::server::limits::ConnectionLimits;
use penstock_router::http::socket::SocketRules;
use penstock_router::http::state::AppState;
use penstock_router::inference::Inference;
use penstock_router::inference::limits::{Limits, RequestLimits};
use penstock_router::inference::served_model::{ModelNames, ServedModel};
use penstock_router::observe::access_log::AccessLog;
use penstock_router::observe::metrics::Metrics;
use penstock_router::observe::telemetry::Telemetry;
use penstock_router::text::fill_in_middle::FillInMiddle;
use penstock_router::text::tokenizer::Tokenizer;
use penstock_scheduler::SchedulerConfig;
use serde_json::{Map, Value};
use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tower::ServiceExt;
use tower_http::cors::CorsLayer;

use super::fake_adapters::FakeAdapters;
use super::fake_engine::{FakeControl, FakeEngine, adapted_tokens, expected_tokens, small_facts};
use super::fake_weights::FakeWeights;

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Single bytes and three control tokens, so that any token can be generated and most texts are odd.
pub fn byte_tokenizer() -> tokenizers::Tokenizer {
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    let mut trainer: TrainerWrapper =
        BpeTrainer::builder().vocab_size(256).show_progress(false).initial_alphabet(alphabet).build().into();
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    tokenizer.train(&mut trainer, ["abc"].iter()).unwrap();
    let control = ["<|im_end|>", "<|im_start|>"].map(|token| AddedToken::from(token, true));
    tokenizer.add_special_tokens(control).unwrap();
    tokenizer
}

/// Facts of a shard for [`byte_tokenizer`].
pub fn facts() -> EngineFacts {
    let tokenizer = byte_tokenizer();
    EngineFacts {
        vocab_size: tokenizer.get_vocab_size(true) as u32,
        eos_token_ids: vec![tokenizer.token_to_id("<|im_end|>").unwrap()],
        ..small_facts()
    }
}

/// The defaults of the flags.
pub fn limits() -> Limits {
    Limits {
        max_queued_tokens: 1_000_000,
        max_queued_bytes: 1 << 28,
        max_concurrent_requests: 8,
        max_input_tokens: None,
        max_total_tokens: None,
        default_max_tokens: None,
        max_batch_prefill_tokens: None,
        max_batch_total_tokens: None,
        max_best_of: 2,
        max_stop_sequences: 4,
        max_top_n_tokens: 5,
        max_client_batch_size: 4,
        vertex_timeout: 55,
        disable_grammar_support: false,
        strict_fields: false,
        trust_request_chat_template: false,
        watermark_gamma: 0.5,
        watermark_delta: 2.0,
    }
}

/// Limits of small bodies, with ample time.
pub fn body_limits() -> BodyLimits {
    BodyLimits::new(&small_bodies())
}

fn small_bodies() -> ConnectionLimits {
    ConnectionLimits { payload_limit: 4096, ..ConnectionLimits::default() }
}

/// The same seeds in each run of a test: a random one would now and then end a sequence early.
fn counted_seeds() -> Arc<dyn Fn() -> u64 + Send + Sync> {
    let next = AtomicU64::new(1);
    Arc::new(move || next.fetch_add(1, Ordering::Relaxed))
}

/// A router and its fake engine.
pub struct Server {
    pub state: AppState,
    pub cors: Option<CorsLayer>,
    pub control: FakeControl,
    pub tokenizer: tokenizers::Tokenizer,
    /// The shards as far as adapters go; at most two are loaded at a time.
    pub adapters: Arc<FakeAdapters>,
}

/// A response with its whole body.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {:?}", self.text))
    }

    /// The data of each event, which must be framed exactly as TGI does.
    pub fn events(&self) -> Vec<String> {
        assert!(self.text.ends_with("\n\n"), "{:?}", self.text);
        let events = self.text.trim_end_matches("\n\n").split("\n\n");
        events.map(|event| event.strip_prefix("data: ").expect("one line of data").to_owned()).collect()
    }

    /// The data of each event as JSON, without the closing `[DONE]`, which must be there under /v1.
    pub fn openai_events(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// Name and data of each event of a stream whose events are named; the data must repeat the name as its `type`.
    pub fn named_events(&self) -> Vec<(String, Value)> {
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').expect("two lines");
            let name = name.strip_prefix("event: ").expect("a name").to_owned();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).unwrap();
            assert_eq!(data["type"], name);
            (name, data)
        };
        self.text.trim_end_matches("\n\n").split("\n\n").map(event).collect()
    }

    /// The lines of a stream of JSON objects.
    pub fn json_lines(&self) -> Vec<Value> {
        assert!(self.text.ends_with('\n'), "{:?}", self.text);
        self.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub fn native_events(&self) -> Vec<Value> {
        self.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// A body for several routes as this one takes it: some refuse fields of the others.
pub fn body_for(path: &str, mut body: Value) -> Value {
    if path == "/v1/messages" {
        body.as_object_mut().expect("an object").remove("prompt");
    }
    body
}

impl Server {
    /// Over shards that return outcomes at once.
    pub fn start() -> Self {
        Self::with(FakeEngine::new(facts()), limits())
    }

    /// Over shards that return an outcome only per call of [`Server::allow_steps`].
    pub fn gated() -> Self {
        Self::with(FakeEngine::gated(facts()), limits())
    }

    pub fn with(engine: (FakeEngine, FakeControl), limits: Limits) -> Self {
        Self::with_keys(engine, limits, ApiKeys::default())
    }

    /// With these API keys, whose tenants have the keys' weights.
    pub fn with_keys(engine: (FakeEngine, FakeControl), limits: Limits, api_keys: ApiKeys) -> Self {
        Self::over(vec![engine], limits, api_keys)
    }

    /// Over several replicas; the control is that of the first.
    pub fn with_replicas(engines: Vec<(FakeEngine, FakeControl)>, limits: Limits) -> Self {
        Self::over(engines, limits, ApiKeys::default())
    }

    fn over(engines: Vec<(FakeEngine, FakeControl)>, limits: Limits, api_keys: ApiKeys) -> Self {
        let (mut engines, controls): (Vec<_>, Vec<_>) = engines.into_iter().unzip();
        let (facts, tokenizer) = (engines[0].facts().clone(), byte_tokenizer());
        let templates = ChatTemplates::from_source(CHATML, Map::new()).unwrap();
        let chat = ChatFormat::new(templates, &tokenizer, &facts.eos_token_ids).unwrap();
        let request_limits = RequestLimits::new(&limits, &facts).unwrap();
        let metrics = Metrics::new(request_limits.max_input_tokens, request_limits.max_total_tokens).unwrap();
        let config = SchedulerConfig {
            tenant_weights: api_keys.weights(),
            ..SchedulerConfig::new(facts.capacity(), limits.max_concurrent_requests)
        };
        let fake_adapters = Arc::new(FakeAdapters::default());
        let adapter_limits = AdapterLimits {
            max_running: facts.max_adapters,
            max_loaded: 2,
            load_timeout: Duration::from_secs(5),
        };
        let record = AdapterRecord::default();
        let adapters = Adapters::new(fake_adapters.clone(), adapter_limits, metrics.clone(), record);
        engines.iter_mut().for_each(|engine| engine.adapters = Some(adapters.clone()));
        let wanted = engines[0].wanted.clone();
        let engines = engines.into_iter().map(|engine| Box::new(engine) as Box<dyn Engine>).collect();
        let loaded = Tokenizer::new(tokenizer.clone(), 1).unwrap();
        let vocabulary = loaded.vocabulary().clone();
        let inference = Inference {
            model: Arc::new(ServedModel::new("org/tiny", &ModelNames::default())),
            adapters,
            limits: Arc::new(request_limits),
            tokenizer: loaded,
            chat: Some(Arc::new(chat)),
            fill_in_middle: FillInMiddle::of(&tokenizer).unwrap().map(Arc::new),
            grammars: Grammars::new(vocabulary, facts.vocab_size, facts.eos_token_ids.clone()).unwrap(),
            uses_predictions: true,
            draw_seed: counted_seeds(),
            engine: engine_loop::spawn(engines, &config, wanted, metrics.clone()),
            metrics,
            shutdown: Shutdown::new(Duration::from_secs(90)),
        };
        let state = AppState {
            inference,
            api_keys,
            adapter_rules: RunTimeRules::default(),
            is_model_open: false,
            weights_rules: WeightsRules::new(None, Arc::new(FakeWeights), trainers()),
            body_limits: body_limits(),
            socket_rules: Arc::new(SocketRules::new(&small_bodies(), &[])),
            telemetry: Telemetry::default(),
            tokenizer_info: None,
            access_log: AccessLog::default(),
        };
        let control = controls.into_iter().next().expect("a server has a replica");
        Self { state, cors: None, control, tokenizer, adapters: fake_adapters }
    }

    /// The served routes.
    pub fn service(&self) -> Router {
        service(self.state.clone(), self.cors.clone())
    }

    /// With other names for the model.
    pub fn with_names(mut self, names: &[&str], accept_any_model: bool) -> Self {
        let served_model_name = names.iter().map(|name| (*name).to_owned()).collect();
        let names = ModelNames { served_model_name, accept_any_model };
        self.state.inference.model = Arc::new(ServedModel::new("org/tiny", &names));
        self
    }

    /// With an adapter of this name, whose content is called the same.
    pub fn with_adapter(self, name: &str) -> Self {
        self.state.inference.adapters.add(name, Path::new(&format!("/adapters/{name}")));
        self
    }

    /// With another chat template.
    pub fn with_template(mut self, template: &str) -> Self {
        let templates = ChatTemplates::from_source(template, Map::new()).unwrap();
        let eos = &self.state.inference.engine.facts().eos_token_ids;
        self.state.inference.chat = Some(Arc::new(ChatFormat::new(templates, &self.tokenizer, eos).unwrap()));
        self
    }

    /// Waits until the router has noticed that its shards are lost.
    pub async fn wait_for_loss(&self) {
        while self.state.inference.engine.status() == EngineStatus::Ready {
            tokio::task::yield_now().await;
        }
    }

    /// Lets the shards return the outcomes of this many more steps.
    pub fn allow_steps(&self, count: usize) {
        self.control.allow(count);
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.service().oneshot(with_host(request)).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.into()).unwrap(),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(post(path, &body)).await
    }

    /// Sends a request and returns as soon as the headers of the response have arrived.
    pub async fn open(&self, path: &str, body: Value) -> OpenStream {
        self.open_request(post(path, &body)).await
    }

    /// Sends any request and returns as soon as the headers of the response have arrived.
    pub async fn open_request(&self, request: Request<Body>) -> OpenStream {
        let response = self.service().oneshot(with_host(request)).await.unwrap();
        OpenStream { status: response.status(), body: response.into_body().into_data_stream() }
    }

    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, false).unwrap().get_ids().to_vec()
    }

    /// The tokens that the fake shards generate greedily after this text.
    pub fn expected(&self, prompt: &str, count: usize) -> Vec<u32> {
        expected_tokens(&self.encode(prompt), 0, count, self.state.inference.engine.facts())
    }

    /// The text that the fake shards generate greedily after this text with an adapter.
    pub fn adapted_text(&self, adapter: &str, prompt: &str, count: usize) -> String {
        let facts = self.state.inference.engine.facts();
        let tokens = adapted_tokens(Some(adapter), &self.encode(prompt), count, facts);
        self.tokenizer.decode(&tokens, true).unwrap()
    }

    /// The text of [`Server::expected`].
    pub fn expected_text(&self, prompt: &str, count: usize) -> String {
        self.tokenizer.decode(&self.expected(prompt, count), true).unwrap()
    }

    /// The value of a metric.
    pub async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text;
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }
}

/// What every client of HTTP/1.1 sends.
fn with_host(mut request: Request<Body>) -> Request<Body> {
    request.headers_mut().entry(header::HOST).or_insert(HeaderValue::from_static("test"));
    request
}

/// A response whose body is still open.
pub struct OpenStream {
    pub status: StatusCode,
    body: axum::body::BodyDataStream,
}

impl OpenStream {
    /// The next chunk of the body, `None` at its end.
    pub async fn next(&mut self) -> Option<String> {
        let chunk = self.body.next().await?.unwrap();
        Some(String::from_utf8(chunk.into()).unwrap())
    }

    /// The rest of the body.
    pub async fn rest(mut self) -> String {
        let mut rest = String::new();
        while let Some(chunk) = self.next().await {
            rest += &chunk;
        }
        rest
    }
}

/// A path of the table of routes with values in the place of its parameters.
pub fn sample_path(path: &str) -> String {
    path.replace("{name}", "tiny").replace("{version}", "1").replace("{*", "").replace('}', "")
}

pub fn post(path: &str, body: &Value) -> Request<Body> {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

/// One, at a host that is called so.
fn trainers() -> Trainers {
    Trainers::new(vec!["trainer".to_owned()], Duration::from_secs(300), Arc::new(FakeWeights))
}
