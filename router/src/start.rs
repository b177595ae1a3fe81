//! The start: builds what is served from the flags, the model's folder and what the shards report.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_scheduler::SchedulerConfig;
use serde_json::{Map, Value};

use crate::admin::record::{Recorded, ReplicaRecord};
use crate::admin::{Admin, OnRemoved};
use crate::base::error::Error;
use crate::base::launcher_line::{ACCESS, Line};
use crate::base::shutdown::Shutdown;
use crate::block_events;
use crate::block_events::Outbox;
use crate::block_events::listener::Listeners as BlockEventListeners;
use crate::chat::template::tokenizer_info;
use crate::chat::{ChatFormat, ChatFormatError};
use crate::config::RouterConfig;
use crate::engine::adapters::{
    AdapterHub, AdapterLimits, AdapterLoader, AdapterOptions, AdapterRecord, Adapters, RunTimeRules,
};
use crate::engine::condition::{ConditionOptions, ConditionRecord, Wanted};
use crate::engine::generation::EngineHandle;
use crate::engine::recruiter::Recruiter;
use crate::engine::trainer::Trainers;
use crate::engine::weights::WeightsRules;
use crate::engine::{Engine, EngineFacts, ShardedEngine, connect_any, engine_loop};
use crate::grammar::Grammars;
use crate::http::auth::ApiKeys;
use crate::http::body::BodyLimits;
use crate::http::socket::SocketRules;
use crate::http::state::AppState;
use crate::inference::Inference;
use crate::inference::limits::RequestLimits;
use crate::inference::served_model::ServedModel;
use crate::observe::access_log::AccessLog;
use crate::observe::metrics::Metrics;
use crate::observe::telemetry::Telemetry;
use crate::replica_groups;
use crate::scheduler_config::{possible, scheduler_config};
use crate::serve_error::ServeError;
use crate::text::fill_in_middle::FillInMiddle;
use crate::text::tokenizer::Tokenizer;

/// The parts that are served, for clients and for operators.
pub(crate) struct Built {
    /// The state for handlers.
    pub state: AppState,
    /// The state for the socket of operators.
    pub admin: Admin,
}

/// Builds the state that handlers share from the model's folder, the flags and the facts that the shards report.
pub(crate) async fn build(
    config: &RouterConfig,
    block_events: Option<BlockEventListeners>,
    shutdown: &Shutdown,
) -> Result<Built, ServeError> {
    let options = &config.options;
    let api_keys = ApiKeys::load(&options.api_key, options.api_key_file.as_deref())?;
    let tokenizer = Tokenizer::load(config.tokenizer_file(), options.validation_workers)?;
    let record = replica_record(config);
    let recorded = record.read();
    let condition = ConditionRecord(config.condition_record.clone());
    let wanted = Wanted::new(condition, options.condition.first(), options.condition.on_request());
    let mut engines = connect_any(replica_groups::to_connect(config, &wanted, recorded.as_ref())?).await?;
    check_awake_bytes(config, &engines)?;
    let facts = connected(&engines).facts().clone();
    let texts = Texts::load(config, tokenizer, &facts)?;
    let limits = RequestLimits::new(&options.limits, &facts)?;
    let metrics = Metrics::new(limits.max_input_tokens, limits.max_total_tokens)?;
    metrics.record_router_restarts(config.router_restarts);
    let scheduler = possible(scheduler_config(options, facts.capacity(), api_keys.weights()), &facts);
    let model = ServedModel::new(&config.model_id, &options.names);
    let first = connected(&engines);
    let loader = Arc::new(first.adapter_loader());
    let adapters = adapters(config, &model, loader, facts.max_adapters, &metrics, &wanted).await?;
    let weights_rules = weights_rules(&options.condition, first);
    let recruiter = Recruiter::beside(first, options.replicas.access()?, adapters.clone());
    engines.iter_mut().for_each(|engine| engine.restores(adapters.clone()));
    let outbox = block_events.map(|listeners| outbox(config, listeners, &adapters, &metrics));
    let scheduler = SchedulerConfig { cache_events: outbox.is_some(), ..scheduler };
    let engines = engines.into_iter().map(|engine| Box::new(engine) as Box<dyn Engine>).collect();
    let inference = Inference {
        model: Arc::new(model),
        adapters,
        limits: Arc::new(limits),
        grammars: texts.grammars,
        tokenizer: texts.tokenizer,
        chat: texts.chat,
        fill_in_middle: texts.fill_in_middle,
        uses_predictions: options.speculation.uses_predictions(),
        draw_seed: Arc::new(rand::random),
        engine: engine_loop::spawn(engines, &scheduler, wanted, (metrics.clone(), outbox)),
        metrics,
        shutdown: shutdown.clone(),
    };
    let engine = inference.engine.clone();
    drain_again(&engine, recorded.as_ref()).await;
    let on_removed = on_removed(config);
    // The router before this one may have died before it could say so.
    recorded.iter().flat_map(|recorded| &recorded.removed).for_each(|replica| on_removed(*replica));
    let state = state(config, inference, weights_rules, api_keys, texts.info)?;
    Ok(Built { state, admin: Admin { engine, recruiter: Arc::new(recruiter), record, on_removed } })
}

/// The objects that are made of the files of the tokenizer and the template.
struct Texts {
    tokenizer: Tokenizer,
    chat: Option<Arc<ChatFormat>>,
    fill_in_middle: Option<Arc<FillInMiddle>>,
    grammars: Grammars,
    info: Option<Map<String, Value>>,
}

impl Texts {
    fn load(config: &RouterConfig, tokenizer: Tokenizer, facts: &EngineFacts) -> Result<Self, ServeError> {
        let options = &config.options;
        let vocabulary = tokenizer.vocabulary();
        let chat = chat_format(config, &tokenizer, &facts.eos_token_ids)?;
        let chat = chat.map(|chat| chat.trusting_requests(options.limits.trust_request_chat_template));
        let template = chat.as_ref().map(ChatFormat::template_source);
        let info = tokenizer_info(config.template_folder(), &options.template, template)
            .map_err(ChatFormatError::from)?;
        let fill_in_middle = FillInMiddle::of(vocabulary.tokenizer()).map_err(ChatFormatError::from)?;
        let grammars = Grammars::new(vocabulary.clone(), facts.vocab_size, facts.eos_token_ids.clone())?;
        Ok(Self {
            tokenizer,
            chat: chat.map(Arc::new),
            fill_in_middle: fill_in_middle.map(Arc::new),
            grammars,
            info,
        })
    }
}

/// The state that handlers share.
fn state(
    config: &RouterConfig,
    inference: Inference,
    weights_rules: WeightsRules,
    api_keys: ApiKeys,
    tokenizer_info: Option<Map<String, Value>>,
) -> Result<AppState, ServeError> {
    let (options, metrics) = (&config.options, inference.metrics.clone());
    let prefix = if config.supervised { ACCESS } else { "" };
    Ok(AppState {
        inference,
        api_keys,
        adapter_rules: RunTimeRules {
            root: options.adapters.lora_root.clone(),
            hub: adapter_hub(config),
            is_open: options.adapters.allow_runtime_lora_updating,
        },
        is_model_open: options.condition.allow_model_changes,
        weights_rules,
        body_limits: BodyLimits::new(&options.connections),
        socket_rules: Arc::new(SocketRules::new(&options.connections, &options.cors_allow_origin)),
        tokenizer_info: tokenizer_info.map(Arc::new),
        telemetry: Telemetry::start(&options.telemetry, metrics.span_counters())?,
        access_log: AccessLog::start(
            options.access_log,
            prefix,
            std::io::stdout(),
            metrics.access_log_drops(),
        )?,
    })
}

/// Refuses a model that no other could make enough room for. Replicas that are not there yet are taken to be like the first.
/// Not when the router was started again: shards may have come back with some more meanwhile, and serve.
fn check_awake_bytes(config: &RouterConfig, engines: &[ShardedEngine]) -> Result<(), ServeError> {
    let limit = config.options.condition.max_awake_bytes.filter(|_| config.router_restarts == 0);
    let takes = connected(engines).awake_bytes().times(engines.len() as u64);
    let name = config.options.names.served_model_name.first().unwrap_or(&config.model_id);
    limit.map_or(Ok(()), |limit| limit.check(name, takes)).map_err(ServeError::from)
}

fn replica_record(config: &RouterConfig) -> ReplicaRecord {
    ReplicaRecord {
        path: config.replica_record.clone(),
        num_supervised: if config.supervised { config.own_replicas().len() } else { 0 },
    }
}

/// Which weights may take the place of those that the shards were started with.
fn weights_rules(options: &ConditionOptions, engine: &ShardedEngine) -> WeightsRules {
    let (hosts, timeout) = (options.trainer_host.clone(), Duration::from_secs(options.trainer_timeout));
    let trainers = Trainers::new(hosts, timeout, Arc::new(engine.weights_receiver()));
    WeightsRules::new(options.weights_root.clone(), Arc::new(engine.weights_checker()), trainers)
}

/// Where the engine loop puts what is told of the prefix caches.
fn outbox(
    config: &RouterConfig,
    listeners: BlockEventListeners,
    adapters: &Adapters,
    metrics: &Metrics,
) -> Outbox {
    let names = adapters.clone();
    let names = Box::new(move |id: &str| names.name_of(id));
    block_events::start(&config.options.block_events, listeners, names, metrics.block_event_counters())
}

/// Has the launcher end the shards of replicas that were removed, if there is one.
fn on_removed(config: &RouterConfig) -> OnRemoved {
    let is_supervised = config.supervised;
    Arc::new(move |replica| {
        if is_supervised {
            Line::Removed(replica).write();
        }
    })
}

/// Drains the replicas that the router before this one had drained.
async fn drain_again(engine: &EngineHandle, recorded: Option<&Recorded>) {
    for replica in recorded.iter().flat_map(|recorded| &recorded.drained) {
        if let Err(error) = engine.drain_replica(*replica, None).await {
            tracing::warn!(%error, "a replica that was drained takes requests again");
        }
    }
}

/// Where adapters are downloaded from at run time, if that is allowed.
fn adapter_hub(config: &RouterConfig) -> Option<AdapterHub> {
    let python = config.adapter_python.as_ref().filter(|_| config.options.adapters.allow_lora_downloads)?;
    Some(AdapterHub::new(python.clone(), config.adapter_cache.clone()))
}

/// The adapters of the flags, or those that the router before this one had. As many as may be loaded at a time are loaded
/// now, so that a server with a bad one does not start, unless the model sleeps from the start on.
async fn adapters(
    config: &RouterConfig,
    model: &ServedModel,
    loader: Arc<dyn AdapterLoader>,
    max_running: u32,
    metrics: &Metrics,
    wanted: &Wanted,
) -> Result<Adapters, ServeError> {
    let options: &AdapterOptions = &config.options.adapters;
    let limits = AdapterLimits {
        max_running,
        max_loaded: options.max_cpu_loras,
        load_timeout: Duration::from_secs(options.lora_load_timeout),
    };
    let record = AdapterRecord(config.adapter_record.clone());
    let adapters = Adapters::new(loader, limits, metrics.clone(), record);
    if adapters.take_over().await {
        return Ok(adapters);
    }
    for given in &options.lora_adapters {
        if model.check_known(Some(&given.name)).is_ok() {
            let reason = "it has a name of the model".to_owned();
            return Err(ServeError::Adapter(Error::Adapter { name: given.name.clone(), reason }));
        }
        adapters.add(&given.name, Path::new(&given.source));
    }
    // Shards that sleep load none.
    let num_loaded = if wanted.get().asleep.is_some() { 0 } else { options.max_cpu_loras as usize };
    for given in options.lora_adapters.iter().take(num_loaded) {
        adapters.lease(&given.name).await.map_err(ServeError::Adapter)?;
    }
    Ok(adapters)
}

/// The format of conversations; `None` if the model has none.
pub(crate) fn chat_format(
    config: &RouterConfig,
    tokenizer: &Tokenizer,
    eos_token_ids: &[u32],
) -> Result<Option<ChatFormat>, ChatFormatError> {
    let vocabulary = tokenizer.vocabulary();
    ChatFormat::load(
        config.template_folder(),
        &config.options.template,
        vocabulary.tokenizer(),
        eos_token_ids,
    )
}

/// A replica that is connected; at least one is.
fn connected(engines: &[ShardedEngine]) -> &ShardedEngine {
    let connected = engines.iter().find(|engine| engine.is_connected());
    connected.expect("connect_any connects one")
}
