//! Builds the JSON schema of an object, for the OpenAPI document.

use serde_json::{Map, Value, json};

/// The schema of an object with these properties, all of them required.
pub fn object_schema(properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().into_iter().flat_map(Map::keys).collect();
    json!({ "type": "object", "required": required, "properties": properties })
}
