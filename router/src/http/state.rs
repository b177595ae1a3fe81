//! What handlers work with.

use crate::http::auth::ApiKeys;
use crate::http::body::BodyLimits;
use crate::inference::Inference;
use crate::observe::telemetry::Telemetry;

/// What handlers work with. Cheap to clone.
#[derive(Clone)]
pub struct AppState {
    /// The model, and what runs requests on it.
    pub inference: Inference,
    /// Who may send requests.
    pub api_keys: ApiKeys,
    /// How large bodies may be, and how long they may take.
    pub body_limits: BodyLimits,
    /// What begins traces.
    pub telemetry: Telemetry,
}
