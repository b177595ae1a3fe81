//! The standard health service, told the truth: SERVING while requests are answered, as `/health` is 200.

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::http::state::AppState;

/// The server as a whole, and the one service it has.
const NAMES: [&str; 2] = ["", "penstock.api.v1.Inference"];

/// Tells the reporter of every change, for as long as there is an engine loop.
pub async fn report(app: AppState, reporter: HealthReporter) {
    let mut engine = app.inference.engine.status.clone();
    loop {
        tell(&reporter, app.inference.ready().is_ok()).await;
        let changed = tokio::select! {
            changed = engine.changed() => changed.is_ok(),
            () = app.inference.shutdown.draining() => false,
        };
        if !changed {
            return tell(&reporter, false).await;
        }
    }
}

async fn tell(reporter: &HealthReporter, is_ready: bool) {
    let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    for name in NAMES {
        reporter.set_service_status(name, status).await;
    }
}
