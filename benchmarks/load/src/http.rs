//! HTTP/1.1 to one server over connections that are kept alive. Knows nothing of tokens.
//!
//! hyper is driven directly: one connection carries one stream at a time, and the pool is a stack of idle ones.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::error::Error;
use crate::record::{ErrorClass, Failure};

type Connection = SendRequest<Full<Bytes>>;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Host and port, as the `Host` header wants them.
    pub authority: String,
    /// Host alone.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Whether to speak TLS.
    pub tls: bool,
    /// Prefix of every path, without a slash at its end.
    pub base_path: String,
}

impl Endpoint {
    /// Reads `http://host:port/base`; the scheme may be left out.
    pub fn parse(url: &str) -> Result<Self, String> {
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri =
            full.parse().map_err(|_| format!("`{url}` is not a URL like http://127.0.0.1:3000"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            other => return Err(format!("scheme `{}` of `{url}` is not http or https", other.unwrap_or(""))),
        };
        let host = uri.host().ok_or_else(|| format!("`{url}` names no host"))?;
        Ok(Self {
            authority: uri.authority().map_or_else(String::new, |authority| authority.as_str().to_owned()),
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            tls,
            base_path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// Builds the headers that every request carries.
pub fn request_headers(
    endpoint: &Endpoint,
    api_key: Option<&str>,
    extra: &[String],
) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    let host = HeaderValue::from_str(&endpoint.authority);
    headers.insert(HOST, host.map_err(|_| Error::flag("--url", &endpoint.authority, "not a host name"))?);
    headers
        .insert(USER_AGENT, HeaderValue::from_static(concat!("penstock-bench/", env!("CARGO_PKG_VERSION"))));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(key) = api_key {
        let value = HeaderValue::from_str(&format!("Bearer {key}"));
        headers
            .insert(AUTHORIZATION, value.map_err(|_| Error::flag("--api-key", "***", "not printable text"))?);
    }
    for line in extra {
        let (name, value) =
            parse_header(line).ok_or_else(|| Error::flag("--header", line, "write it like `Name: value`"))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

fn parse_header(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
}

/// Sends requests to one server and keeps its connections.
pub struct Pool {
    endpoint: Endpoint,
    addresses: Vec<SocketAddr>,
    headers: HeaderMap,
    tls: Option<TlsConnector>,
    connect_timeout: Duration,
    idle: Mutex<Vec<Connection>>,
}

/// The head of an answer, and the connection that its body arrives on.
pub struct Answer {
    /// Status, headers and the body to read.
    pub response: Response<Incoming>,
    connection: Connection,
}

impl Answer {
    /// Splits the body from the connection, which is to be returned by [`Pool::put_back`] once the body is read.
    pub fn into_parts(self) -> (Incoming, Lease) {
        (self.response.into_body(), Lease(self.connection))
    }
}

/// A connection whose response is being read. Dropping it early closes it, which makes the server cancel the request.
pub struct Lease(Connection);

impl Pool {
    /// Resolves the server's name once; nothing is connected yet.
    pub async fn new(
        endpoint: Endpoint,
        headers: HeaderMap,
        connect_timeout: Duration,
    ) -> Result<Self, Error> {
        let found = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await;
        let addresses: Vec<_> = found
            .map_err(|error| {
                Error::Server(format!("--url: cannot resolve host `{}`: {error}", endpoint.host))
            })?
            .collect();
        let tls = if endpoint.tls { Some(tls_connector()?) } else { None };
        Ok(Self { endpoint, addresses, headers, tls, connect_timeout, idle: Mutex::default() })
    }

    /// Posts JSON and waits for the head of the answer. A kept connection that turns out dead is replaced once.
    pub async fn post(&self, path: &str, body: Bytes) -> Result<Answer, Failure> {
        self.send(Method::POST, path, body).await
    }

    /// Gets a path and waits for the head of the answer.
    pub async fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Keeps a connection whose answer was read to its end.
    pub fn put_back(&self, lease: Lease) {
        self.idle_connections().push(lease.0);
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, Failure> {
        if let Some(mut connection) = self.take_idle().await
            && let Ok(response) = connection.send_request(self.request(&method, path, &body)).await
        {
            return Ok(Answer { response, connection });
        }
        let mut connection = self.connect().await?;
        match connection.send_request(self.request(&method, path, &body)).await {
            Ok(response) => Ok(Answer { response, connection }),
            Err(error) => Err(self.connect_failure(&describe(&error))),
        }
    }

    fn request(&self, method: &Method, path: &str, body: &Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = method.clone();
        let target = format!("{}{path}", self.endpoint.base_path);
        *request.uri_mut() = target.parse().unwrap_or_else(|_| Uri::from_static("/"));
        request.headers_mut().clone_from(&self.headers);
        request
    }

    fn idle_connections(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take_idle(&self) -> Option<Connection> {
        loop {
            let mut connection = self.idle_connections().pop()?;
            if connection.ready().await.is_ok() {
                return Some(connection);
            }
        }
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        match tokio::time::timeout(self.connect_timeout, self.open()).await {
            Ok(opened) => opened.map_err(|error| self.connect_failure(&error.to_string())),
            Err(_) => Err(self.connect_failure("no answer within --connect-timeout")),
        }
    }

    async fn open(&self) -> std::io::Result<Connection> {
        let tcp = TcpStream::connect(&self.addresses[..]).await?;
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return speak_http(tcp).await };
        let name = ServerName::try_from(self.endpoint.host.clone()).map_err(std::io::Error::other)?;
        speak_http(tls.connect(name, tcp).await?).await
    }

    fn connect_failure(&self, problem: &str) -> Failure {
        let (host, port) = (&self.endpoint.host, self.endpoint.port);
        Failure::new(ErrorClass::Connect, format!("cannot reach {host}:{port}: {problem}"))
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pool").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

async fn speak_http<S>(stream: S) -> std::io::Result<Connection>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    tokio::spawn(connection); // its errors reach the request that waits on it
    Ok(sender)
}

fn tls_connector() -> Result<TlsConnector, Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Server(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// An error with its causes, on one line.
pub fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Reads a short body whole, for what is not a stream: errors, `/tokenize`, `/v1/models`.
pub async fn read_body(mut body: Incoming, max_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        if bytes.len() > max_bytes {
            break;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_give_host_port_and_base() {
        let plain = Endpoint::parse("localhost:8000").unwrap();
        assert_eq!(
            (plain.host.as_str(), plain.port, plain.tls, plain.base_path.as_str()),
            ("localhost", 8000, false, "")
        );
        let deep = Endpoint::parse("https://api.example.com/openai/").unwrap();
        assert_eq!((deep.port, deep.tls, deep.base_path.as_str()), (443, true, "/openai"));
        assert_eq!(Endpoint::parse("http://[::1]:3000").unwrap().host, "::1");
    }

    #[test]
    fn bad_urls_are_named() {
        assert!(Endpoint::parse("ftp://x").unwrap_err().contains("ftp"));
        assert!(Endpoint::parse("http://a b").unwrap_err().contains("http://a b"));
    }

    #[test]
    fn headers_are_parsed_and_bad_ones_named() {
        let endpoint = Endpoint::parse("h:1").unwrap();
        let headers = request_headers(&endpoint, Some("k"), &["X-Tenant: a:b".into()]).unwrap();
        assert_eq!(
            (&headers["x-tenant"], &headers["authorization"], &headers["host"]),
            (
                &HeaderValue::from_static("a:b"),
                &HeaderValue::from_static("Bearer k"),
                &HeaderValue::from_static("h:1")
            )
        );
        let problem = request_headers(&endpoint, None, &["nonsense".into()]).unwrap_err().to_string();
        assert_eq!(problem, "--header nonsense: write it like `Name: value`");
    }
}
