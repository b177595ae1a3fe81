//! Serves the OpenAPI document, and a page that shows it.

use axum::Extension;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Redirect, Response};

use super::ui;

/// The text of the OpenAPI document.
#[derive(Clone, Copy)]
pub struct ApiDocument(pub &'static str);

/// `GET /openapi.json`, and `/api-doc/openapi.json` as in TGI
pub async fn document(Extension(ApiDocument(text)): Extension<ApiDocument>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], text)
}

/// `GET /docs`
pub async fn page(headers: HeaderMap) -> Response {
    ui::serve("docs.html", &headers)
}

/// `GET /docs/`: redirects to `/docs`, because the page refers to its files relative to its own address.
pub async fn to_page() -> Redirect {
    Redirect::permanent("../docs")
}
