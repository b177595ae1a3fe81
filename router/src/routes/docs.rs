//! The OpenAPI document, and a page that shows it.

use std::sync::LazyLock;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Redirect, Response};

use super::ui;
use crate::openapi::document_text;

static DOCUMENT: LazyLock<String> = LazyLock::new(document_text);

/// `GET /openapi.json`, and where TGI has it
pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// `GET /docs`
pub(super) async fn page(headers: HeaderMap) -> Response {
    ui::serve("docs.html", &headers)
}

/// `GET /docs/`: the page names what it needs relative to its own address.
pub(super) async fn to_page() -> Redirect {
    Redirect::permanent("../docs")
}
