//! What the platform that runs the server sets by environment variables: the kind of its machines, and the paths under
//! which Vertex AI calls the server.

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
