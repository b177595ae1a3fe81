//! Connections to upstreams: TCP, and TLS over it for https, or a Unix socket.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::http::Uri;
use axum::http::uri::{Authority, Scheme};
use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};
use tower::Service;

use super::error::ProxyError;
use super::url::socket_of;
use crate::base::pem::PemFile;

/// Longest time for TCP and TLS to be agreed on.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens connections.
#[derive(Clone)]
pub struct Connector {
    tcp: HttpConnector,
    tls: TlsConnector,
}

impl Connector {
    /// Trusts the certificates in this file, or those of the system.
    pub fn new(ca: Option<&Path>) -> Result<Self, ProxyError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots(ca)?)
            .with_no_client_auth();
        Ok(Self { tcp, tls: TlsConnector::from(Arc::new(config)) })
    }
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, ProxyError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    for certificate in (PemFile { flag: "--upstream-ca", path }).certificates()? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Link>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<TokioIo<Link>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let authority = uri.authority().map(Authority::as_str).unwrap_or_default();
        if let Some(path) = socket_of(uri.scheme_str().unwrap_or_default(), authority) {
            let open = async move { Ok::<_, BoxError>(Link(Box::new(UnixStream::connect(path).await?))) };
            return Box::pin(async move { Ok(TokioIo::new(timeout(CONNECT_TIMEOUT, open).await??)) });
        }
        let tls = Some(self.tls.clone()).filter(|_| uri.scheme() == Some(&Scheme::HTTPS));
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let tcp = self.tcp.call(uri);
        let open = async move {
            let stream = tcp.await?.into_inner();
            let Some(tls) = tls else { return Ok::<_, BoxError>(Link(Box::new(stream))) };
            Ok(Link(Box::new(tls.connect(ServerName::try_from(host)?, stream).await?)))
        };
        Box::pin(async move { Ok(TokioIo::new(timeout(CONNECT_TIMEOUT, open).await??)) })
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// An open connection, encrypted or not.
pub struct Link(Box<dyn Stream>);

impl Connection for Link {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Link {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
