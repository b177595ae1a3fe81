//! `/metrics`: the metrics in Prometheus' text format.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::http::state::AppState;
use crate::observe::metrics::Served;

/// `GET /metrics`
pub async fn metrics(State(app): State<AppState>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        app.inference.metrics.render_with(&served(&app)),
    )
}

fn served(app: &AppState) -> Served {
    let facts = app.inference.engine.facts();
    let (running_adapters, waiting_adapters) = app.inference.adapters.in_use();
    Served {
        model: app.inference.model.id.clone(),
        block_size: facts.block_size,
        max_adapters: facts.max_adapters,
        running_adapters,
        waiting_adapters,
    }
}
