//! `/info`: the served model and the limits of requests.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::condition::update::WeightsState;
use crate::base::role::Role;
use crate::engine::condition::AwakeBytes;
use crate::engine::{EngineFacts, GenerationDefaults, Quantization};
use crate::http::state::AppState;

/// The fields of TGI, including those that it dropped in version 3 and scripts still read.
#[derive(Serialize, ToSchema)]
pub struct Info {
    model_id: String,
    model_sha: Option<String>,
    model_dtype: String,
    model_device_type: String,
    model_type: String,
    model_impl: &'static str,
    /// Element type of the KV cache.
    kv_cache_dtype: String,
    /// The implementation of attention.
    attention_backend: String,
    /// The model's default sampling parameters; null with `--generation-config none`.
    generation_defaults: Option<GenerationDefaults>,
    /// How weights are quantized, in the checkpoint or at load; null if they are not.
    quantization: Option<Quantization>,
    model_pipeline_tag: &'static str,
    num_shard: u32,
    /// Ranges of layers that the shards have, one after the other (`--pipeline-parallel-size`).
    num_stages: u32,
    /// Whether each shard has whole experts, not a slice of every expert.
    expert_parallel: bool,
    /// Replicas of the model, each of `num_shard` shards.
    num_replicas: u32,
    /// What each of them is for, in the order of their numbers.
    replica_roles: Vec<Role>,
    max_concurrent_requests: u32,
    max_best_of: u32,
    max_stop_sequences: u32,
    max_top_n_tokens: u32,
    max_input_tokens: u32,
    max_total_tokens: u32,
    max_batch_prefill_tokens: u32,
    max_batch_total_tokens: u64,
    max_batch_size: u32,
    validation_workers: u32,
    max_client_batch_size: u32,
    router: &'static str,
    version: &'static str,
    sha: Option<String>,
    docker_label: Option<String>,
    /// 0 while the model is awake, else how deep it sleeps: 1 or 2.
    sleep_level: u32,
    /// Memory of the devices that the model takes awake beyond what it takes asleep, over all shards of all replicas.
    awake_bytes: AwakeBytes,
    /// The weights in use: `weights_version`, `weights_number`.
    #[serde(flatten)]
    weights: WeightsState,
    /// Names of the adapters that requests may use.
    adapters: Vec<String>,
    /// Different adapters that run at one time; 0 if the model can carry none.
    max_adapters: u32,
}

/// `GET /info`
pub async fn info(State(app): State<AppState>) -> Json<Info> {
    let condition = app.inference.engine.wanted().get();
    let (limits, facts) = (&app.inference.limits, app.inference.engine.facts());
    Json(Info {
        model_id: app.inference.model.id.clone(),
        model_sha: None,
        model_dtype: facts.dtype.clone(),
        model_device_type: facts.device.split(':').next().unwrap_or_default().to_owned(),
        model_type: facts.model_type.clone(),
        model_impl: model_impl(facts),
        kv_cache_dtype: facts.kv_cache_dtype.clone(),
        attention_backend: facts.attention_backend.clone(),
        generation_defaults: facts.generation_defaults.clone(),
        quantization: facts.quantization.clone(),
        model_pipeline_tag: "text-generation",
        num_shard: facts.world_size,
        num_stages: facts.num_stages,
        expert_parallel: facts.expert_parallel,
        num_replicas: app.inference.engine.num_replicas() as u32,
        replica_roles: app.inference.engine.roles(),
        max_concurrent_requests: app.inference.limits.max_concurrent_requests,
        max_best_of: limits.max_best_of,
        max_stop_sequences: limits.max_stop_sequences,
        max_top_n_tokens: limits.max_top_n_tokens,
        max_input_tokens: limits.max_input_tokens,
        max_total_tokens: limits.max_total_tokens,
        max_batch_prefill_tokens: facts.max_step_tokens,
        max_batch_total_tokens: u64::from(facts.num_blocks) * u64::from(facts.block_size),
        max_batch_size: facts.num_slots,
        validation_workers: app.inference.tokenizer.num_workers(),
        max_client_batch_size: limits.max_client_batch_size,
        router: "penstock-router",
        version: env!("CARGO_PKG_VERSION"),
        sha: None,
        docker_label: None,
        sleep_level: condition.sleep_level(),
        awake_bytes: app.inference.engine.awake_bytes(),
        weights: WeightsState::new(&condition, &facts.weights_version),
        adapters: app.inference.adapters.list().iter().map(|adapter| adapter.name.to_string()).collect(),
        max_adapters: facts.max_adapters,
    })
}

/// The modelling code that runs the model: `native`, or `transformers`.
fn model_impl(facts: &EngineFacts) -> &'static str {
    let by_transformers = facts.abilities.iter().any(|ability| ability == "transformers");
    if by_transformers { "transformers" } else { "native" }
}
