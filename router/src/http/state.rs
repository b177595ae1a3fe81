//! The state that all handlers share.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::engine::adapters::RunTimeRules;
use crate::engine::weights::WeightsRules;
use crate::http::auth::ApiKeys;
use crate::http::body::BodyLimits;
use crate::http::socket::SocketRules;
use crate::inference::Inference;
use crate::observe::access_log::AccessLog;
use crate::observe::telemetry::Telemetry;

/// The state that all handlers share. It has no behaviour of its own. Cheap to clone.
#[derive(Clone)]
pub struct AppState {
    /// Runs requests on the model.
    pub inference: Inference,
    /// The keys that callers are identified by.
    pub api_keys: ApiKeys,
    /// Who may load adapters at run time, and from where.
    pub adapter_rules: RunTimeRules,
    /// Whether callers without a key of the server may send the model to sleep, wake it and replace its weights.
    pub is_model_open: bool,
    /// Which weights may take the place of the model's.
    pub weights_rules: WeightsRules,
    /// Limits on the size of a body and on the time to receive it.
    pub body_limits: BodyLimits,
    /// Limits on WebSocket connections, and which pages may open one.
    pub socket_rules: Arc<SocketRules>,
    /// Begins traces.
    pub telemetry: Telemetry,
    /// The response of `/tokenizer_info`; `None` if the server may not give it.
    pub tokenizer_info: Option<Arc<Map<String, Value>>>,
    /// Writes a line for each request.
    pub access_log: AccessLog,
}
