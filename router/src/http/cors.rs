//! The layer that lets pages of other origins call the API from a browser: those of `--cors-allow-origin`, else none.

use axum::http::{HeaderValue, Method};
use thiserror::Error as ThisError;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

/// A value of `--cors-allow-origin` that is not an origin.
#[derive(Debug, ThisError)]
#[error("--cors-allow-origin {0:?} must be an origin such as https://example.org, or *")]
pub struct CorsError(String);

/// Builds the layer; `None` if no other origin is allowed.
pub fn layer(origins: &[String]) -> Result<Option<CorsLayer>, CorsError> {
    if origins.is_empty() {
        return Ok(None);
    }
    let layer = CorsLayer::new()
        .allow_origin(allowed(origins)?)
        .allow_methods([Method::GET, Method::POST])
        // Clients add headers of their own (keys, versions, telemetry). The server trusts none but the key.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(Any);
    Ok(Some(layer))
}

fn allowed(origins: &[String]) -> Result<AllowOrigin, CorsError> {
    if origins.iter().any(|origin| origin == "*") {
        return Ok(AllowOrigin::any());
    }
    let origins = origins.iter().map(|origin| parse(origin)).collect::<Result<Vec<_>, _>>()?;
    Ok(AllowOrigin::list(origins))
}

fn parse(origin: &str) -> Result<HeaderValue, CorsError> {
    let is_origin = origin.split_once("://").is_some_and(|(_, host)| !host.is_empty() && !host.contains('/'));
    let value = HeaderValue::from_str(origin).ok().filter(|_| is_origin);
    value.ok_or_else(|| CorsError(origin.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_origins_are_accepted() {
        let layer = |origin: &str| layer(&[origin.to_owned()]);
        for good in ["*", "https://example.org", "http://localhost:8080"] {
            assert!(layer(good).unwrap().is_some(), "{good}");
        }
        for bad in ["", "example.org", "https://example.org/", "https://", "http://a\nb"] {
            assert!(layer(bad).is_err(), "{bad}");
        }
        assert!(super::layer(&[]).unwrap().is_none());
    }
}
