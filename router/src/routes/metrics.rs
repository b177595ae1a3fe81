//! Metrics in Prometheus' text format.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::app::AppState;

/// `GET /metrics`
pub(super) async fn metrics(State(app): State<AppState>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
}
