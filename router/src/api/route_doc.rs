//! The entry of a route in the OpenAPI document, and the schemas that it refers to.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use utoipa::ToSchema;

/// Registers the schema of a type, and returns a reference to it.
pub type SchemaOf = Arc<dyn Fn(&mut Schemas) -> Value>;

/// Schemas by name, including all schemas that they refer to.
#[derive(Default)]
pub struct Schemas(pub BTreeMap<String, Value>);

/// The entry of a route in the OpenAPI document.
#[derive(Clone, Default)]
pub struct Doc {
    /// The summary, in one line.
    pub summary: &'static str,
    /// The parameters of the query, with their schemas.
    pub query: Vec<(&'static str, Value)>,
    /// The types that the body may have.
    pub accepts: Vec<SchemaOf>,
    /// The types that the JSON response may have.
    pub returns: Vec<SchemaOf>,
    /// Another media type that the response may have.
    pub media_type: Option<&'static str>,
    /// The types that an event of a stream may have.
    pub events: Vec<SchemaOf>,
    /// The types that a line of a stream of JSON may have.
    pub lines: Vec<SchemaOf>,
}

impl Doc {
    /// An entry with a summary only.
    pub fn new(summary: &'static str) -> Self {
        Self { summary, ..Self::default() }
    }

    /// Adds a parameter of the query, which may be left out.
    pub fn asks(mut self, name: &'static str, schema: Value) -> Self {
        self.query.push((name, schema));
        self
    }

    /// Adds a type that the body may have.
    pub fn accepts<T: ToSchema + 'static>(mut self) -> Self {
        self.accepts.push(Arc::new(refer::<T>));
        self
    }

    /// Adds a type that the response may have.
    pub fn returns<T: ToSchema + 'static>(mut self) -> Self {
        self.returns.push(Arc::new(refer::<T>));
        self
    }

    /// Adds a generic type with the parameter `P` under a name of its own.
    pub fn returns_as<T: ToSchema + 'static, P: ToSchema + 'static>(mut self, name: &'static str) -> Self {
        self.returns.push(Arc::new(move |schemas| {
            refer::<P>(schemas);
            refer_as::<T>(name.to_owned(), schemas)
        }));
        self
    }

    /// Adds a list of a type that the response may have.
    pub fn returns_list<T: ToSchema + 'static>(mut self) -> Self {
        self.returns.push(Arc::new(|schemas| json!({ "type": "array", "items": refer::<T>(schemas) })));
        self
    }

    /// Sets the other media type of the response.
    pub fn with_media_type(self, media_type: &'static str) -> Self {
        Self { media_type: Some(media_type), ..self }
    }

    /// The response may be a stream of server-sent events whose data have this type.
    pub fn streams<T: ToSchema + 'static>(mut self) -> Self {
        self.events.push(Arc::new(refer::<T>));
        self
    }

    /// Like [`Doc::streams`], for a generic type with the parameter `P` under a name of its own.
    pub fn streams_as<T: ToSchema + 'static, P: ToSchema + 'static>(mut self, name: &'static str) -> Self {
        self.events.push(Arc::new(move |schemas| {
            refer::<P>(schemas);
            refer_as::<T>(name.to_owned(), schemas)
        }));
        self
    }

    /// The response may be a stream of lines of JSON, each of which has this type.
    pub fn streams_lines<T: ToSchema + 'static>(mut self) -> Self {
        self.lines.push(Arc::new(refer::<T>));
        self
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

/// The schema of one type, or `anyOf` several; `None` without types.
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
