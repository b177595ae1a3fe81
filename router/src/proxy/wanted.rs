//! Which model a request names: in its path, its query or its body, wherever the dialects have it.

use axum::extract::{FromRequestParts, Query, RawPathParams};
use axum::http::Uri;
use axum::http::request::Parts;
use serde::Deserialize;

use super::members::Members;

/// Parameters of paths that are the name of a model: of `/v1/models/{*id}` and `/v2/models/{name}/…`.
const IN_PATH: [&str; 2] = ["id", "name"];
/// The tag that Ollama's clients add to a name without one.
const DEFAULT_TAG: &str = ":latest";

/// The model that a request names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The name of a model, or of an adapter in its place.
    pub model: Option<String>,
    /// The name of an adapter, as TGI's clients send it.
    pub adapter: Option<String>,
}

#[derive(Deserialize)]
struct InQuery {
    model: Option<String>,
}

impl Wanted {
    /// The model that a request with this body names.
    pub async fn by(parts: &mut Parts, body: &[u8]) -> Self {
        let in_path = RawPathParams::from_request_parts(parts, &()).await.ok().and_then(|params| {
            params.iter().find(|(key, _)| IN_PATH.contains(key)).map(|(_, name)| name.to_owned())
        });
        if in_path.is_some() {
            return Self { model: in_path, adapter: None };
        }
        let in_query = Self::by_query(&parts.uri);
        if in_query.model.is_some() { in_query } else { Self::by_body(body, parts.uri.path()) }
    }

    /// The model that `?model=` names, for routes without a body.
    pub fn by_query(uri: &Uri) -> Self {
        let model = Query::<InQuery>::try_from_uri(uri).ok().and_then(|query| query.0.model);
        Self { model, adapter: None }
    }

    fn by_body(body: &[u8], path: &str) -> Self {
        let is_ollamas = path.starts_with("/api/");
        // `/api/show` has an older name of it.
        let older = || text_of(body, b"name").filter(|_| is_ollamas);
        let model = text_of(body, b"model").or_else(older).map(|name| match name.strip_suffix(DEFAULT_TAG) {
            Some(untagged) if is_ollamas => untagged.to_owned(),
            _ => name,
        });
        let parameters = Members::find(body, b"parameters");
        Self { model, adapter: parameters.and_then(|it| text_of(it, b"adapter_id")) }
    }
}

/// The text that a member has.
fn text_of(body: &[u8], name: &[u8]) -> Option<String> {
    serde_json::from_slice(Members::find(body, name)?).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    async fn wanted(uri: &str, body: &str) -> (Option<String>, Option<String>) {
        let (mut parts, ()) = Request::post(uri).body(()).unwrap().into_parts();
        let Wanted { model, adapter } = Wanted::by(&mut parts, body.as_bytes()).await;
        (model, adapter)
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[tokio::test]
    async fn a_name_is_read_as_it_is_meant() {
        for (uri, body, model, adapter) in [
            (
                "/v1/chat/completions",
                r#"{"messages":[{"model":"x"}],"model":"org/\u0061"}"#,
                some("org/a"),
                None,
            ),
            ("/generate", r#"{"inputs":"","parameters":{"adapter_id":"l"}}"#, None, some("l")),
            ("/api/chat", r#"{"model":"a:latest"}"#, some("a"), None),
            ("/v1/completions", r#"{"model":"a:latest"}"#, some("a:latest"), None),
            ("/api/show", r#"{"name":"a:8b"}"#, some("a:8b"), None),
            ("/v1/completions", r#"{"name":"a"}"#, None, None),
            ("/info?model=org%2Fa&x=1", "", some("org/a"), None),
            ("/v1/completions", r#"{"model":null}"#, None, None),
            ("/v1/completions", r#"{"model":5}"#, None, None),
            ("/v1/completions", r#"{"model":"broken"#, None, None),
            ("/v1/completions", "", None, None),
        ] {
            assert_eq!(wanted(uri, body).await, (model, adapter), "{uri} {body}");
        }
    }
}
