//! Environment variables that the platform sets for the server: the kind of its machines, and the paths under which
//! Vertex AI calls the server.

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::uri::{PathAndQuery, Uri};
use axum::middleware::{map_request, map_response};
use axum::response::Response;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::super::response_headers::COMPUTE_TYPE;
use super::super::table::routes;

/// The settings of the platform.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlatformOptions {
    /// Value of the response header `x-compute-type` [default: number and kind of the devices]
    #[arg(long, env, value_parser = header_value)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_type: Option<String>,

    /// Another path of /vertex; Vertex AI sets it
    #[arg(long, env, value_name = "PATH", value_parser = path)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aip_predict_route: Option<String>,

    /// Another path of /health; Vertex AI sets it
    #[arg(long, env, value_name = "PATH", value_parser = path)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aip_health_route: Option<String>,
}

impl PlatformOptions {
    /// The service with these settings applied. A path that has a route already keeps it.
    pub fn wrap(&self, service: Router) -> Router {
        let service = self.with_other_paths(service);
        let compute_type = self.compute_type.as_deref().filter(|name| !name.is_empty());
        let Some(name) = compute_type.and_then(|name| HeaderValue::from_str(name).ok()) else {
            return service;
        };
        service.layer(map_response(move |response: Response| {
            let name = name.clone();
            async move { with_compute_type(response, name) }
        }))
    }

    /// The paths are rewritten before the routes are chosen, so keys, limits and metrics are those of the usual path.
    fn with_other_paths(&self, service: Router) -> Router {
        let given = [(&self.aip_predict_route, "/vertex"), (&self.aip_health_route, "/health")];
        let is_free = |path: &String| !path.is_empty() && routes().iter().all(|route| route.path != path);
        let paths: Vec<(String, &'static str)> = given
            .into_iter()
            .filter_map(|(path, usual)| Some((path.clone().filter(is_free)?, usual)))
            .collect();
        if paths.is_empty() {
            return service;
        }
        Router::new().fallback_service(service).layer(map_request(move |request: Request| {
            let usual = paths.iter().find(|(path, _)| path == request.uri().path()).map(|(_, usual)| *usual);
            async move { with_path(request, usual) }
        }))
    }
}

fn with_path(mut request: Request, path: Option<&'static str>) -> Request {
    if let Some(path) = path {
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::from_static(path));
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_else(|_| Uri::from_static(path));
    }
    request
}

fn with_compute_type(mut response: Response, name: HeaderValue) -> Response {
    if let Some(value) = response.headers_mut().get_mut(COMPUTE_TYPE) {
        *value = name;
    }
    response
}

fn path(text: &str) -> Result<String, String> {
    if text.is_empty() || (text.starts_with('/') && text.parse::<PathAndQuery>().is_ok()) {
        return Ok(text.to_owned());
    }
    Err("expected a path that starts with /".to_owned())
}

fn header_value(text: &str) -> Result<String, String> {
    match HeaderValue::from_str(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("expected the value of an HTTP header".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::routing::{get, post};
    use tower::ServiceExt;

    use super::*;

    fn service() -> Router {
        let with_header = || async { ([(COMPUTE_TYPE, "1-cpu")], "health") };
        Router::new()
            .route("/vertex", post(|| async { "vertex" }))
            .route("/health", get(with_header))
            .route("/generate", post(|| async { "generate" }))
    }

    async fn response(options: &PlatformOptions, method: &str, path: &str) -> Response {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        options.wrap(service()).oneshot(request).await.unwrap()
    }

    async fn text(options: &PlatformOptions, method: &str, path: &str) -> String {
        let body = response(options, method, path).await.into_body();
        String::from_utf8(to_bytes(body, 100).await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn vertex_calls_the_paths_that_it_chose() {
        let predict = "/v1/endpoints/1/deployedModels/2:predict";
        let options = PlatformOptions {
            aip_predict_route: Some(predict.to_owned()),
            aip_health_route: Some("/v1/endpoints/1/deployedModels/2".to_owned()),
            ..PlatformOptions::default()
        };
        assert_eq!(text(&options, "POST", predict).await, "vertex");
        assert_eq!(text(&options, "GET", "/v1/endpoints/1/deployedModels/2?x=1").await, "health");
        assert_eq!(text(&options, "POST", "/vertex").await, "vertex");
        assert_eq!(text(&options, "POST", "/generate").await, "generate");
    }

    #[tokio::test]
    async fn a_path_that_has_a_route_keeps_it() {
        let options =
            PlatformOptions { aip_predict_route: Some("/generate".to_owned()), ..PlatformOptions::default() };
        assert_eq!(text(&options, "POST", "/generate").await, "generate");
    }

    #[tokio::test]
    async fn the_compute_type_is_that_of_the_operator() {
        let given = |name: &str| PlatformOptions {
            compute_type: Some(name.to_owned()),
            ..PlatformOptions::default()
        };
        for (options, expected) in [
            (given("1-nvidia-h200"), "1-nvidia-h200"),
            (given(""), "1-cpu"),
            (PlatformOptions::default(), "1-cpu"),
        ] {
            assert_eq!(response(&options, "GET", "/health").await.headers()[COMPUTE_TYPE], expected);
        }
        let vertex = response(&given("x"), "POST", "/vertex").await;
        assert!(!vertex.headers().contains_key(COMPUTE_TYPE));
    }

    #[test]
    fn values_that_cannot_be_used_are_refused() {
        assert!(path("vertex").is_err() && path("/a b").is_err());
        assert_eq!(path("/p:predict"), Ok("/p:predict".to_owned()));
        assert!(header_value("a\nb").is_err());
    }
}
