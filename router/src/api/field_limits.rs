//! The limits and the defaults of fields in the OpenAPI document. They are those of `inference::validation`: a test sends
//! values at and beyond each limit. Limits that a flag sets are not here: `/info` has them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The types with parameters of a request.
const REQUESTS: [&str; 5] =
    ["ChatRequest", "CompletionRequest", "GenerateParameters", "MessagesRequest", "ResponsesRequest"];

/// The schemas, with the limits and the defaults of the fields of requests.
pub(super) fn with_limits(mut schemas: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    for request in REQUESTS {
        let properties = schemas.get_mut(request).and_then(|schema| schema["properties"].as_object_mut());
        for (name, property) in properties.into_iter().flatten() {
            if let (Value::Object(property), Value::Object(facts)) = (property, facts(request, name)) {
                property.extend(facts);
            }
        }
    }
    schemas
}

/// The facts that the OpenAPI document states about a field, besides its type.
fn facts(request: &str, field: &str) -> Value {
    let is_native = request == "GenerateParameters";
    match field {
        "temperature" if is_native => json!({ "exclusiveMinimum": 0, "maximum": 100 }),
        "temperature" => json!({ "minimum": 0, "maximum": 100 }),
        "top_p" | "typical_p" => json!({ "exclusiveMinimum": 0, "maximum": 1 }),
        "min_p" => json!({ "minimum": 0, "maximum": 1 }),
        "top_k" if is_native => json!({ "minimum": 1 }),
        "top_k" => json!({ "minimum": -1 }),
        "repetition_penalty" => json!({ "minimum": 0.01, "maximum": 100 }),
        "frequency_penalty" | "presence_penalty" => json!({ "minimum": -2, "maximum": 2, "default": 0 }),
        "priority" => json!({ "minimum": -10, "maximum": 10, "default": 0 }),
        "cache_ttl_ms" | "queue_timeout_ms" => json!({ "minimum": 1, "maximum": 3_600_000 }),
        "max_tokens" | "max_completion_tokens" if request == "CompletionRequest" => json!({ "minimum": 0 }),
        "max_tokens" | "max_completion_tokens" | "max_output_tokens" | "max_new_tokens" | "truncate" => {
            json!({ "minimum": 1 })
        }
        "n" => json!({ "minimum": 1, "default": 1 }),
        "best_of" => json!({ "minimum": 1 }),
        "stream" | "ignore_eos" | "echo" | "watermark" | "details" | "decoder_input_details" => {
            json!({ "default": false })
        }
        "logprobs" if request == "ChatRequest" => json!({ "default": false }),
        "parallel_tool_calls" => json!({ "default": true }),
        _ => Map::new().into(),
    }
}
