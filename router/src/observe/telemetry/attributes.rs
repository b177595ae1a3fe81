//! The names of attributes: OpenTelemetry's where it has one, `penstock.*` for the rest. No attribute holds text of a
//! user except the request's id, which the client may choose.

use opentelemetry::Key;

macro_rules! names {
    ($($constant:ident = $name:literal;)*) => {
        $(pub(super) const $constant: Key = Key::from_static_str($name);)*
    };
}

names! {
    HTTP_METHOD = "http.request.method";
    HTTP_ROUTE = "http.route";
    HTTP_STATUS = "http.response.status_code";
    RPC_SYSTEM = "rpc.system";
    RPC_SERVICE = "rpc.service";
    RPC_METHOD = "rpc.method";
    RPC_STATUS = "rpc.grpc.status_code";
    ERROR_TYPE = "error.type";
    REQUEST_ID = "penstock.request.id";
    PROVIDER = "gen_ai.provider.name";
    OPERATION = "gen_ai.operation.name";
    REQUEST_MODEL = "gen_ai.request.model";
    RESPONSE_MODEL = "gen_ai.response.model";
    INPUT_TOKENS = "gen_ai.usage.input_tokens";
    CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens";
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens";
    FINISH_REASONS = "gen_ai.response.finish_reasons";
    TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token";
    SEQUENCE = "penstock.sequence";
    STEPS = "penstock.steps";
    STEP = "penstock.step";
    STEP_SEQUENCES = "penstock.step.sequences";
    STEP_POSITIONS = "penstock.step.positions";
    OWN_POSITIONS = "penstock.step.positions.own";
    UPLOAD_MS = "penstock.steps.upload_ms";
    FORWARD_MS = "penstock.steps.forward_ms";
    SAMPLE_MS = "penstock.steps.sample_ms";
    DOWNLOAD_MS = "penstock.steps.download_ms";
}
