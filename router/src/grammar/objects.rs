//! Reads a schema that has keywords of objects and no `type` as TGI does: as one of an object, with the properties that
//! it names and no others. One with keywords of arrays is one of an array. By the standard it would allow any other value, too, and further properties: a model that may
//! write `true` where a client described an object often does.

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
/// Keywords that say something of arrays only.
const OF_ARRAYS: [&str; 4] = ["items", "prefixItems", "minItems", "maxItems"];
/// Keywords that say themselves which types a value may have.
const OF_TYPES: [&str; 4] = ["type", "enum", "const", "$ref"];
/// Keywords beside which further properties are somebody else's affair.
const OF_PROPERTIES: [&str; 7] = [
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "dependentSchemas",
];

/// The subschemas of a keyword. Those of `allOf` stay as they are: another entry may have their type.
enum Subschemas {
    /// One, for a value within this one.
    Inner,
    /// A list, for values within this one.
    InnerList,
    /// Subschemas by name, for values within this one.
    InnerNamed,
    /// A list, for the same value.
    SameList,
    /// Subschemas by name, for values that are not known.
    Named,
}

fn subschemas(keyword: &str) -> Option<Subschemas> {
    match keyword {
        "items" | "additionalProperties" => Some(Subschemas::Inner),
        "prefixItems" => Some(Subschemas::InnerList),
        "properties" | "patternProperties" => Some(Subschemas::InnerNamed),
        "anyOf" | "oneOf" => Some(Subschemas::SameList),
        "$defs" | "definitions" => Some(Subschemas::Named),
        _ => None,
    }
}

/// Adds `"type": "object"` where a schema or a subschema describes an object without it, and `"type": "array"` where it
/// describes an array. If nothing else can have a
/// word on its properties, there are no others than those that it names.
pub(super) fn with_types(mut schema: Value) -> Value {
    complete(&mut schema, true);
    schema
}

/// `is_whole`: no other subschema holds for the same value.
fn complete(schema: &mut Value, is_whole: bool) {
    let Value::Object(fields) = schema else { return };
    for (keyword, value) in fields.iter_mut() {
        match (subschemas(keyword), value) {
            (Some(Subschemas::Inner), value) => complete(value, true),
            (Some(Subschemas::InnerList), Value::Array(entries)) => {
                entries.iter_mut().for_each(|entry| complete(entry, true));
            }
            (Some(Subschemas::InnerNamed), Value::Object(named)) => {
                named.values_mut().for_each(|entry| complete(entry, true));
            }
            (Some(Subschemas::SameList), Value::Array(entries)) => {
                entries.iter_mut().for_each(|entry| complete(entry, false));
            }
            (Some(Subschemas::Named), Value::Object(named)) => {
                named.values_mut().for_each(|entry| complete(entry, false));
            }
            _ => {}
        }
    }
    if describes_object(fields) {
        fields.insert("type".to_owned(), "object".into());
        if is_whole && fields.contains_key("properties") && !has_any(fields, &OF_PROPERTIES) {
            fields.insert("additionalProperties".to_owned(), false.into());
        }
    } else if describes_array(fields) {
        fields.insert("type".to_owned(), "array".into());
    }
}

fn describes_object(fields: &Map<String, Value>) -> bool {
    has_any(fields, &OF_OBJECTS) && !has_any(fields, &OF_TYPES)
}

fn describes_array(fields: &Map<String, Value>) -> bool {
    has_any(fields, &OF_ARRAYS) && !has_any(fields, &OF_TYPES)
}

fn has_any(fields: &Map<String, Value>, keywords: &[&str]) -> bool {
    keywords.iter().any(|keyword| fields.contains_key(*keyword))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_describes_an_object_is_one_at_every_depth() {
        let inner = json!({"properties": {"x": {"minimum": 1}}});
        let typed = json!({"properties": {"x": {"minimum": 1}}, "type": "object"});
        let closed =
            json!({"properties": {"x": {"minimum": 1}}, "type": "object", "additionalProperties": false});
        for (wrap, completed) in [
            ((|inner| inner.clone()) as fn(&Value) -> Value, &closed),
            (|inner| json!({"type": "array", "items": inner}), &closed),
            (|inner| json!({"type": "array", "prefixItems": [inner]}), &closed),
            (|inner| json!({"type": "object", "properties": {"properties": inner}}), &closed),
            (|inner| json!({"type": "object", "additionalProperties": inner}), &closed),
            // Elsewhere the same value may have other properties.
            (|inner| json!({"$defs": {"d": inner}, "$ref": "#/$defs/d"}), &typed),
            (
                |inner| json!({"type": "object", "anyOf": [{"required": ["y"], "type": "object"}, inner]}),
                &typed,
            ),
        ] {
            assert_eq!(with_types(wrap(&inner)), wrap(completed));
        }
        for keyword in OF_OBJECTS {
            assert_eq!(with_types(json!({ keyword: {} }))["type"], "object", "{keyword}");
        }
    }

    #[test]
    fn what_describes_an_array_is_one() {
        for keyword in OF_ARRAYS {
            assert_eq!(with_types(json!({ keyword: 1 })), json!({ keyword: 1, "type": "array" }));
        }
        let nested = json!({"items": {"items": {"minimum": 1}}});
        let completed = json!({"items": {"items": {"minimum": 1}, "type": "array"}, "type": "array"});
        assert_eq!(with_types(nested), completed);
        let both = json!({"items": {}, "required": ["x"]});
        assert_eq!(with_types(both)["type"], "object", "as before");
    }

    #[test]
    fn further_properties_stay_possible_where_the_schema_speaks_of_them() {
        for keyword in OF_PROPERTIES {
            let schema = json!({"properties": {}, keyword: {}});
            let completed = json!({"properties": {}, keyword: {}, "type": "object"});
            assert_eq!(with_types(schema), completed, "{keyword}");
        }
        let named_only = json!({"required": ["x"]});
        assert_eq!(with_types(named_only), json!({"required": ["x"], "type": "object"}));
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
            assert_eq!(with_types(schema.clone()), schema);
        }
    }
}
