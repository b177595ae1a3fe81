//! A certificate for localhost, and clients that trust it.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use penstock_router::http::server::limits::ConnectionLimits;
use penstock_router::http::server::tls::TlsFiles;
use rcgen::CertifiedKey;
use rustls_pki_types::ServerName;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::listening::serve_with;
use super::server::Server;

/// A certificate for localhost and its key, in files.
pub struct Identity {
    folder: TempDir,
    trusted: RootCertStore,
}

impl Identity {
    pub fn new() -> Self {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cert.pem"), cert.pem()).unwrap();
        fs::write(folder.path().join("key.pem"), signing_key.serialize_pem()).unwrap();
        let mut trusted = RootCertStore::empty();
        trusted.add(cert.der().clone()).unwrap();
        Self { folder, trusted }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn serve(&self, server: &Server, limits: ConnectionLimits) -> SocketAddr {
        let files = TlsFiles { cert: &self.path("cert.pem"), key: &self.path("key.pem") };
        serve_with(server, limits, Some(files.acceptor().unwrap()))
    }

    pub async fn connect(&self, address: SocketAddr, protocol: &[u8]) -> TlsStream<TcpStream> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(self.trusted.clone()).with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    pub async fn http2(&self, address: SocketAddr) -> http2::SendRequest<Body> {
        let stream = self.connect(address, b"h2").await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}
