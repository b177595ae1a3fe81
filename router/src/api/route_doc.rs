//! What the OpenAPI document says of a route, and the schemas that it refers to.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use utoipa::ToSchema;

/// Registers the schema of a type, and gives a reference to it.
pub type SchemaOf = Arc<dyn Fn(&mut Schemas) -> Value>;

/// By name, with all that they refer to.
#[derive(Default)]
pub struct Schemas(pub BTreeMap<String, Value>);

/// What the document says of a route.
#[derive(Clone, Default)]
pub struct Doc {
    /// One line for people.
    pub summary: &'static str,
    /// The types of the body.
    pub takes: Vec<SchemaOf>,
    /// The types of the answer.
    pub gives: Vec<SchemaOf>,
    /// What it may give instead of, or beside, JSON.
    pub media_type: Option<&'static str>,
}

impl Doc {
    /// One line for people.
    pub fn new(summary: &'static str) -> Self {
        Self { summary, ..Self::default() }
    }

    /// The type of the body, or one of several.
    pub fn takes<T: ToSchema + 'static>(mut self) -> Self {
        self.takes.push(Arc::new(refer::<T>));
        self
    }

    /// The type of the answer, or one of several.
    pub fn gives<T: ToSchema + 'static>(mut self) -> Self {
        self.gives.push(Arc::new(refer::<T>));
        self
    }

    /// The same under a name of its own, for a type that takes another, `P`, as its parameter.
    pub fn gives_as<T: ToSchema + 'static, P: ToSchema + 'static>(mut self, name: &'static str) -> Self {
        self.gives.push(Arc::new(move |schemas| {
            refer::<P>(schemas);
            refer_as::<T>(name.to_owned(), schemas)
        }));
        self
    }

    /// The same for a list.
    pub fn gives_list<T: ToSchema + 'static>(mut self) -> Self {
        self.gives.push(Arc::new(|schemas| json!({ "type": "array", "items": refer::<T>(schemas) })));
        self
    }

    /// Another form of the answer.
    pub fn as_media_type(self, media_type: &'static str) -> Self {
        Self { media_type: Some(media_type), ..self }
    }

    /// The answer comes in server-sent events, if it is asked to.
    pub fn streams(self) -> Self {
        self.as_media_type("text/event-stream")
    }
}

fn refer<T: ToSchema>(schemas: &mut Schemas) -> Value {
    refer_as::<T>(T::name().into_owned(), schemas)
}

fn refer_as<T: ToSchema>(name: String, schemas: &mut Schemas) -> Value {
    if !schemas.0.contains_key(&name) {
        let mut found = vec![(name.clone(), T::schema())];
        T::schemas(&mut found);
        let written = |schema| serde_json::to_value(schema).expect("schemas are plain data");
        schemas.0.extend(found.into_iter().map(|(name, schema)| (name, written(schema))));
    }
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// One of the types, or any of several.
pub fn any_of(types: &[SchemaOf], schemas: &mut Schemas) -> Option<Value> {
    match types {
        [] => None,
        [only] => Some(only(schemas)),
        several => {
            let several: Vec<Value> = several.iter().map(|schema_of| schema_of(schemas)).collect();
            Some(json!({ "anyOf": several }))
        }
    }
}
