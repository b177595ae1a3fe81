//! Keeps the status of the standard health service: SERVING exactly while `/health` returns 200.

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::http::state::AppState;

/// The names of the server as a whole and of its one service.
const NAMES: [&str; 2] = ["", "penstock.api.v1.Inference"];

/// Reports every change until the engine loop ends or the server drains; after that the status is NOT_SERVING.
pub async fn report(app: AppState, reporter: HealthReporter) {
    let mut engine = app.inference.engine.status.clone();
    loop {
        set_status(&reporter, app.inference.ready().is_ok()).await;
        let changed = tokio::select! {
            changed = engine.changed() => changed.is_ok(),
            () = app.inference.shutdown.draining() => false,
        };
        if !changed {
            return set_status(&reporter, false).await;
        }
    }
}

async fn set_status(reporter: &HealthReporter, is_ready: bool) {
    let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    for name in NAMES {
        reporter.set_service_status(name, status).await;
    }
}
