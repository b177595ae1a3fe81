//! What is served, and within which limits.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::app::AppState;
use crate::engine::EngineFacts;

/// `/info`
pub fn router() -> Router<AppState> {
    Router::new().route("/info", get(info))
}

/// TGI's fields, with those that it dropped in version 3 and scripts still read.
async fn info(State(app): State<AppState>) -> Json<Value> {
    let (limits, facts) = (&app.limits, app.engine.facts());
    Json(json!({
        "model_id": app.model.id,
        "model_sha": null,
        "model_dtype": facts.dtype,
        "model_device_type": facts.device.split(':').next(),
        "model_type": facts.model_type,
        "model_impl": model_impl(facts),
        "model_pipeline_tag": "text-generation",
        "num_shard": facts.world_size,
        "max_concurrent_requests": app.model.max_concurrent_requests,
        "max_best_of": limits.max_best_of,
        "max_stop_sequences": limits.max_stop_sequences,
        "max_top_n_tokens": limits.max_top_n_tokens,
        "max_input_tokens": limits.max_input_tokens,
        "max_total_tokens": limits.max_total_tokens,
        "max_batch_prefill_tokens": facts.max_step_tokens,
        "max_batch_total_tokens": u64::from(facts.num_blocks) * u64::from(facts.block_size),
        "max_batch_size": facts.num_slots,
        "validation_workers": app.model.validation_workers,
        "max_client_batch_size": limits.max_client_batch_size,
        "router": "penstock-router",
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null,
    }))
}

/// Whose modelling code computes.
fn model_impl(facts: &EngineFacts) -> &'static str {
    let by_transformers = facts.abilities.iter().any(|ability| ability == "transformers");
    if by_transformers { "transformers" } else { "native" }
}
