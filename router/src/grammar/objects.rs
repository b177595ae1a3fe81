//! Reads a schema that has keywords of objects and no `type` as one of an object. By the standard it would allow any
//! other value, too: a model that may write `true` where a client described an object often does. TGI reads it so.

use serde_json::{Map, Value};

/// Keywords that say something of objects only.
const OF_OBJECTS: [&str; 7] = [
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
];
/// Keywords that say themselves which types a value may have.
const OF_TYPES: [&str; 4] = ["type", "enum", "const", "$ref"];
/// Keywords with one subschema.
const SCHEMA: [&str; 2] = ["items", "additionalProperties"];
/// Keywords with a list of subschemas. Entries of `allOf` are not among them: another entry may have their type.
const SCHEMAS: [&str; 3] = ["anyOf", "oneOf", "prefixItems"];
/// Keywords with subschemas by name.
const NAMED_SCHEMAS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Adds `"type": "object"` where a schema or a subschema describes an object without it.
pub(super) fn with_object_types(mut schema: Value) -> Value {
    add_types(&mut schema);
    schema
}

fn add_types(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    for (keyword, value) in fields.iter_mut() {
        let keyword = keyword.as_str();
        match value {
            Value::Array(entries) if SCHEMAS.contains(&keyword) => entries.iter_mut().for_each(add_types),
            Value::Object(named) if NAMED_SCHEMAS.contains(&keyword) => {
                named.values_mut().for_each(add_types);
            }
            value if SCHEMA.contains(&keyword) => add_types(value),
            _ => {}
        }
    }
    if describes_object(fields) {
        fields.insert("type".to_owned(), "object".into());
    }
}

fn describes_object(fields: &Map<String, Value>) -> bool {
    let has = |keywords: &[&str]| keywords.iter().any(|keyword| fields.contains_key(*keyword));
    has(&OF_OBJECTS) && !has(&OF_TYPES)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_describes_an_object_is_one_at_every_depth() {
        let inner = json!({"properties": {"x": {"minimum": 1}}});
        let typed = json!({"properties": {"x": {"minimum": 1}}, "type": "object"});
        for wrap in [
            |inner: &Value| inner.clone(),
            |inner: &Value| json!({"type": "array", "items": inner}),
            |inner: &Value| json!({"type": "object", "properties": {"properties": inner}}),
            |inner: &Value| json!({"$defs": {"d": inner}, "$ref": "#/$defs/d"}),
            |inner: &Value| json!({"anyOf": [{"type": "null"}, inner]}),
            |inner: &Value| json!({"type": "object", "additionalProperties": inner}),
        ] {
            assert_eq!(with_object_types(wrap(&inner)), wrap(&typed));
        }
        for keyword in OF_OBJECTS {
            assert_eq!(with_object_types(json!({ keyword: {} }))["type"], "object", "{keyword}");
        }
    }

    #[test]
    fn what_has_types_of_its_own_stays_as_it_is() {
        for schema in [
            json!({"type": ["object", "null"], "properties": {}}),
            json!({"enum": [{"properties": {}}], "required": []}),
            json!({"const": {"required": []}, "properties": {}}),
            json!({"$ref": "#/$defs/d", "required": ["x"], "$defs": {"d": {"type": "string"}}}),
            json!({"allOf": [{"type": "string"}, {"properties": {}}]}),
            json!({"default": {"properties": {}}, "minimum": 1}),
            json!(true),
        ] {
            assert_eq!(with_object_types(schema.clone()), schema);
        }
    }
}
