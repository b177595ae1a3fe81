//! What is served, and within which limits.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::app::AppState;

/// TGI's fields, with those that it dropped in version 3 and scripts still read.
pub(super) async fn info(State(app): State<AppState>) -> Json<Value> {
    let (limits, facts) = (&app.limits, app.engine.facts());
    Json(json!({
        "model_id": app.model.id,
        "model_sha": null,
        "model_dtype": facts.dtype,
        "model_device_type": facts.device.split(':').next(),
        "model_type": facts.model_type,
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
