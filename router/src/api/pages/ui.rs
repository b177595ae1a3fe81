//! Serves the user interface: its files are part of the binary and are served under `/ui`, and to browsers that ask `/`
//! for HTML.
//!
//! The files are not secret and require no API key. The page sends the key with its own requests.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::LazyLock;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};

use crate::api::about::health;
use crate::base::error::Error;
use crate::http::state::AppState;

macro_rules! files {
    ($($path:literal)*) => { &[$(($path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/ui/", $path)))),*] };
}

/// All files of the page. A test compares this list with the folder.
const FILES: &[(&str, &[u8])] = files! {
    "css/base.css" "css/chat.css" "css/compare.css" "css/completion.css" "css/docs.css" "css/layout.css"
    "css/markdown.css" "css/status.css" "docs.html" "icon.svg" "index.html" "js/announce.js" "js/answer.js"
    "js/api.js" "js/appearance-boot.js" "js/appearance.js" "js/attachments.js" "js/banner.js" "js/chat.js"
    "js/code.js" "js/compare-side.js" "js/compare.js" "js/completion.js" "js/composer.js" "js/conversations.js"
    "js/copy.js" "js/docs.js" "js/dom.js" "js/download.js" "js/drawers.js" "js/empty.js" "js/examples.js"
    "js/files.js" "js/history.js" "js/key.js" "js/main.js" "js/markdown-of.js" "js/markdown/addresses.js"
    "js/markdown/block-views.js" "js/markdown/blocks.js" "js/markdown/characters.js" "js/markdown/elements.js"
    "js/markdown/emphasis.js" "js/markdown/html.js" "js/markdown/inline.js" "js/markdown/line.js"
    "js/markdown/links.js" "js/markdown/tables.js" "js/markdown/tree.js" "js/markdown/view.js" "js/message.js"
    "js/models.js" "js/plot.js" "js/problem.js" "js/reasoning.js" "js/request.js" "js/scroller.js"
    "js/settings.js" "js/share.js" "js/sse.js" "js/stats-feed.js" "js/stats-line.js" "js/status.js"
    "js/storage.js" "js/thread.js" "js/toast.js" "js/tokens.js" "js/tool-call.js" "js/views.js"
};

/// The content security policy, one directive a line: scripts and styles come from files only, the page sends requests
/// to this server only, and no other page may frame it.
const POLICY: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/ui/csp.txt"));

static ASSETS: LazyLock<HashMap<&str, Asset>> =
    LazyLock::new(|| FILES.iter().map(|(path, content)| (*path, Asset::new(path, content))).collect());

static POLICY_HEADER: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = POLICY.lines().collect::<Vec<_>>().join("; ");
    HeaderValue::from_str(&policy).expect("csp.txt is plain ASCII")
});

struct Asset {
    content: &'static [u8],
    content_type: &'static str,
    etag: HeaderValue,
}

impl Asset {
    fn new(path: &str, content: &'static [u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(content);
        let etag = format!("\"{:016x}\"", hasher.finish());
        let etag = HeaderValue::from_str(&etag).expect("hexadecimal digits in quotes");
        Self { content, content_type: content_type(path), etag }
    }
}

/// `GET /`: the page for browsers, the response of `/health` for probes and all other clients.
pub async fn page_or_health(state: State<AppState>, headers: HeaderMap) -> Response {
    if prefers_html(&headers) {
        return page(headers).await;
    }
    let health = health::ready(state).await;
    let is_ready = health.is_ok();
    let mut response = health.into_response();
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    if is_ready {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    response
}

/// `GET /ui`
pub async fn page(headers: HeaderMap) -> Response {
    serve("index.html", &headers)
}

/// `GET /ui/`: redirects to `/ui`, because the page refers to its files relative to its own address.
pub async fn to_page() -> Redirect {
    Redirect::permanent("../ui")
}

/// `GET /ui/{path}`
pub async fn file(Path(path): Path<String>, headers: HeaderMap) -> Response {
    serve(&path, &headers)
}

/// Serves the file with this path in the folder.
pub fn serve(path: &str, request: &HeaderMap) -> Response {
    let Some(asset) = ASSETS.get(path) else {
        return Error::UnknownRoute(format!("/ui/{}", path.chars().take(200).collect::<String>()))
            .into_response();
    };
    let is_known = request.get(header::IF_NONE_MATCH).is_some_and(|known| matches_etag(known, &asset.etag));
    let mut response =
        if is_known { StatusCode::NOT_MODIFIED.into_response() } else { asset.content.into_response() };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    headers.insert(header::ETAG, asset.etag.clone());
    // Browsers cache files but revalidate them each time: after an upgrade no page may run with older scripts.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY_HEADER.clone());
    for (name, value) in SECURITY_HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

const SECURITY_HEADERS: [(&str, &str); 5] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=()"),
];

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

fn matches_etag(known: &HeaderValue, etag: &HeaderValue) -> bool {
    let known = known.to_str().unwrap_or_default();
    known
        .split(',')
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|tag| tag == "*" || tag.as_bytes() == etag)
}

/// Whether the client prefers HTML over all other types that it accepts. `*/*`, which probes and `curl` send, does not
/// count as HTML.
fn prefers_html(headers: &HeaderMap) -> bool {
    let accepted: Vec<(&str, f32)> = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(media_type_and_weight)
        .collect();
    let html = accepted
        .iter()
        .filter(|(name, _)| *name == "text/html")
        .map(|(_, weight)| *weight)
        .fold(0.0, f32::max);
    html > 0.0 && accepted.iter().all(|(_, weight)| *weight <= html)
}

fn media_type_and_weight(range: &str) -> (&str, f32) {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(1.0, |q| q.parse().unwrap_or(0.0));
    (name, weight)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use axum::{Router, routing};
    use tower::ServiceExt;

    use super::*;

    async fn get(path: &str, header: Option<(HeaderName, &HeaderValue)>) -> Response {
        let mut request = Request::get(path);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let routes = Router::new().route("/ui", routing::get(page)).route("/ui/{*path}", routing::get(file));
        routes.oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    fn files_below(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_below(&path, root, found);
            } else {
                found.push(path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/"));
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let mut found = Vec::new();
        files_below(&root, &root, &mut found);
        found.retain(|path| path != "csp.txt");
        found.sort();
        let listed: Vec<_> = FILES.iter().map(|(path, _)| *path).collect();
        assert_eq!(listed, found, "list the files of router/ui in FILES, sorted");
    }

    #[tokio::test]
    async fn the_page_has_a_strict_policy() {
        let response = get("/ui", None).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
        let policy = response.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        for (name, value) in SECURITY_HEADERS {
            assert_eq!(response.headers()[name], value);
        }
    }

    #[tokio::test]
    async fn the_page_has_no_inline_script_or_style_and_its_files_exist() {
        let page = String::from_utf8(ASSETS["index.html"].content.to_vec()).unwrap();
        assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains("javascript:"));
        assert!(
            page.match_indices("<script").all(|(at, _)| page[at..]
                .split('>')
                .next()
                .unwrap()
                .contains("src="))
        );
        let named = page.split('"').filter_map(|text| text.strip_prefix("ui/"));
        for path in named {
            assert!(ASSETS.contains_key(path), "{path}");
        }
    }

    #[tokio::test]
    async fn files_are_revalidated_by_their_tag() {
        let first = get("/ui/js/main.js", None).await;
        assert_eq!(first.headers()["content-type"], "text/javascript; charset=utf-8");
        assert_eq!(first.headers()["cache-control"], "no-cache");
        let again = get("/ui/js/main.js", Some((header::IF_NONE_MATCH, &first.headers()["etag"]))).await;
        assert_eq!(again.status(), 304);
        assert_eq!(again.headers()["etag"], first.headers()["etag"]);
        assert!(to_bytes(again.into_body(), 10).await.unwrap().is_empty());
        let other = HeaderValue::from_static("\"0\"");
        assert_eq!(get("/ui/js/main.js", Some((header::IF_NONE_MATCH, &other))).await.status(), 200);
    }

    #[tokio::test]
    async fn a_path_without_a_file_is_404() {
        for path in ["/ui/js/none.js", "/ui/../Cargo.toml", "/ui/%2e%2e/Cargo.toml", "/ui/csp.txt", "/ui/js"]
        {
            assert_eq!(get(path, None).await.status(), 404, "{path}");
        }
    }

    #[test]
    fn only_browsers_prefer_html() {
        let prefers = |accept: &'static str| {
            prefers_html(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]))
        };
        assert!(prefers("text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"));
        assert!(prefers("application/json;q=0.5, text/html"));
        for accept in
            ["*/*", "application/json", "", "text/html;q=0.5, application/json", "text/html;q=0", "text/*"]
        {
            assert!(!prefers(accept), "{accept}");
        }
        assert!(!prefers_html(&HeaderMap::new()));
    }
}
