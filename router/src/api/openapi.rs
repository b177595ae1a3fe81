//! Builds the OpenAPI document: paths from the table of routes, schemas from the types that handlers read and write. It
//! is committed as docs/openapi.json (`make docs`) and served at `/openapi.json`.

use std::collections::BTreeMap;

use axum::http::Method;
use serde_json::{Map, Value, json};

use super::field_limits::with_limits;
use super::route::{Access, Route};
use super::route_doc::{Doc, Schemas, any_of};
use super::table::{dialect_of, routes};
use crate::base::error::ErrorKind;

const JSON: &str = "application/json";
/// The errors that a request with a body may cause.
const BODY_ERRORS: [ErrorKind; 23] = [
    ErrorKind::Validation,
    ErrorKind::NotSupported,
    ErrorKind::Grammar,
    ErrorKind::Template,
    ErrorKind::UnknownModel,
    ErrorKind::Adapter,
    ErrorKind::Overloaded,
    ErrorKind::QueueDeadline,
    ErrorKind::RateLimited,
    ErrorKind::ShuttingDown,
    ErrorKind::Unhealthy,
    ErrorKind::Generation,
    ErrorKind::EngineLost,
    ErrorKind::Incomplete,
    ErrorKind::Internal,
    ErrorKind::MalformedJson,
    ErrorKind::TooDeep,
    ErrorKind::UnreadableBody,
    ErrorKind::BodyTimeout,
    ErrorKind::SlowReader,
    ErrorKind::BodyTooLarge,
    ErrorKind::UnsupportedMediaType,
    ErrorKind::UnsupportedEncoding,
];

/// The OpenAPI document as JSON.
pub fn document() -> Value {
    let mut schemas = Schemas::default();
    let mut paths = Map::new();
    for route in routes() {
        let Some(doc) = &route.doc else { continue };
        let path = paths.entry(route.path.replace("{*", "{")).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = operation(&route, doc, &mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "description": "A server for large language models with the APIs of text-generation-inference, OpenAI, Anthropic, Ollama and KServe. /info returns the limits that depend on the model and on flags.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "version": env!("CARGO_PKG_VERSION"),
        },
        "paths": paths,
        "components": {
            "schemas": with_limits(schemas.0),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "x-api-key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
    })
}

/// The text of the document, as it is committed and served.
pub fn document_text() -> String {
    serde_json::to_string_pretty(&document()).expect("our own document has text keys only") + "\n"
}

fn operation(route: &Route, doc: &Doc, schemas: &mut Schemas) -> Value {
    let mut operation = json!({
        "summary": doc.summary,
        "operationId": operation_id(route),
        "responses": { "200": success(doc, schemas) },
    });
    let query =
        doc.query.iter().map(|(name, schema)| json!({ "name": name, "in": "query", "schema": schema }));
    let parameters: Vec<Value> = path_parameters(route.path).map(path_parameter).chain(query).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(schema) = any_of(&doc.accepts, schemas) {
        operation["requestBody"] = json!({ "required": true, "content": { JSON: { "schema": schema } } });
    }
    if route.access == Access::Key {
        // `{}`: a server without keys requires none.
        operation["security"] = json!([{}, { "bearer": [] }, { "x-api-key": [] }]);
        operation["responses"]["401"] = refusal(route.path, "The request has none of the server's API keys");
    }
    if !doc.accepts.is_empty() {
        add_refusals(route.path, &mut operation["responses"]);
    }
    operation["responses"]["default"] = refusal(route.path, "An error");
    operation
}

/// The names between braces in a path of axum's syntax.
fn path_parameters(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0.trim_start_matches('*')))
}

fn path_parameter(name: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
}

fn operation_id(route: &Route) -> String {
    let words = route.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let method = if route.method == Method::GET { "get" } else { "post" };
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

fn success(doc: &Doc, schemas: &mut Schemas) -> Value {
    let mut response = json!({ "description": "Success" });
    if let Some(schema) = any_of(&doc.returns, schemas) {
        response["content"][JSON] = json!({ "schema": schema });
    }
    if let Some(schema) = any_of(&doc.events, schemas) {
        response["content"]["text/event-stream"] = json!({ "schema": schema });
    }
    if let Some(schema) = any_of(&doc.lines, schemas) {
        response["content"]["application/x-ndjson"] = json!({ "schema": schema });
    }
    if let Some(media_type) = doc.media_type {
        response["content"][media_type] = json!({ "schema": { "type": "string" } });
    }
    response
}

/// The errors that a request with a body may meet, by status; each status names its kinds.
fn add_refusals(path: &str, responses: &mut Value) {
    let status_of = dialect_of(path).status;
    let mut kinds: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for kind in BODY_ERRORS {
        kinds.entry(status_of(kind).as_u16()).or_default().push(kind.name());
    }
    for (status, mut names) in kinds {
        names.dedup();
        responses[status.to_string()] = refusal(path, &names.join(", "));
    }
}

/// An error response, in the dialect of the path.
fn refusal(path: &str, description: &str) -> Value {
    let schema = (dialect_of(path).schema)();
    json!({ "description": description, "content": { JSON: { "schema": schema } } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_in_docs_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(written == document_text(), "run `make docs`");
    }

    #[test]
    fn every_route_but_the_socket_and_those_of_the_pages_is_described() {
        let hidden: Vec<_> =
            routes().iter().filter(|route| route.doc.is_none()).map(|route| route.path).collect();
        assert_eq!(hidden, ["/v1/responses", "/ui", "/ui/", "/ui/{*path}", "/docs", "/docs/"]);
    }

    #[test]
    fn every_reference_has_a_schema() {
        let document = document();
        let text = document.to_string();
        let references =
            text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next());
        for name in references {
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }

    #[test]
    fn names_of_operations_are_unique() {
        let mut ids: Vec<_> = routes().iter().filter(|route| route.doc.is_some()).map(operation_id).collect();
        ids.sort();
        let num_ids = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), num_ids);
    }
}
