//! TLS between machines, in which each side shows a certificate of one authority. Its addresses need not be in it, which are
//! not known before a machine starts: all have one name.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig, crypto::ring};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::base::pem::{PemFile, PemFileError};

/// The name that every certificate has; `NODE_NAME` of the shards' `base/mutual_tls.py` is the same.
const NODE_NAME: &str = "penstock-node";
/// How long the other side may take to agree.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Why the files are of no use.
#[derive(Debug, Error)]
pub enum MutualTlsError {
    /// One of them holds nothing of use.
    #[error(transparent)]
    File(#[from] PemFileError),
    /// They do not belong together, or are not what they are to be.
    #[error("--replica-tls-cert {} and --replica-tls-key {} cannot be used: {reason}", cert.display(), key.display())]
    Identity {
        /// The certificate.
        cert: PathBuf,
        /// Its key.
        key: PathBuf,
        /// Why.
        reason: rustls::Error,
    },
    /// It is no authority.
    #[error("--replica-tls-ca {} cannot be used: {reason}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Three files in PEM format.
#[derive(Debug, Clone, Copy)]
pub struct MutualTlsFiles<'a> {
    /// The certificate of this machine.
    pub cert: &'a Path,
    /// Its private key.
    pub key: &'a Path,
    /// The authority that the certificates of all machines are of.
    pub ca: &'a Path,
}

/// The certificate that this machine shows to others, and the authority that it trusts.
#[derive(Clone)]
pub struct MutualTls {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    for_grpc: ClientTlsConfig,
}

/// An encrypted connection.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

impl MutualTls {
    /// Reads the files.
    pub fn read(files: MutualTlsFiles<'_>) -> Result<Self, MutualTlsError> {
        let cert = PemFile { flag: "--replica-tls-cert", path: files.cert };
        let key = PemFile { flag: "--replica-tls-key", path: files.key };
        let ca = PemFile { flag: "--replica-tls-ca", path: files.ca };
        let unusable = |reason| {
            let (cert, key) = (files.cert.to_owned(), files.key.to_owned());
            MutualTlsError::Identity { cert, key, reason }
        };
        let (chain, private) = (cert.certificates()?, key.private_key()?);
        let roots = roots(ca)?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), Arc::new(ring::default_provider()))
                .build()
                .map_err(|error: VerifierBuilderError| authority(ca, &error))?;
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), private.clone_key())
            .map_err(unusable)?;
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, private)
            .map_err(unusable)?;
        let for_grpc = ClientTlsConfig::new()
            .domain_name(NODE_NAME)
            .identity(Identity::from_pem(cert.bytes()?, key.bytes()?))
            .ca_certificate(Certificate::from_pem(ca.bytes()?))
            .timeout(HANDSHAKE);
        let (acceptor, connector) = (Arc::new(server).into(), Arc::new(client).into());
        Ok(Self { acceptor, connector, for_grpc })
    }

    /// Lets in who shows a certificate of the authority.
    pub async fn accept<S: Wire>(&self, stream: S) -> io::Result<impl Wire + use<S>> {
        self.acceptor.accept(stream).await.map_err(explained)
    }

    /// Shows its certificate to whoever shows one of the authority.
    pub async fn connect<S: Wire>(&self, stream: S) -> io::Result<impl Wire + use<S>> {
        let name = ServerName::try_from(NODE_NAME).map_err(io::Error::other)?;
        self.connector.connect(name, stream).await.map_err(explained)
    }

    /// The settings for connections to shards.
    pub(super) fn for_grpc(&self) -> ClientTlsConfig {
        self.for_grpc.clone()
    }
}

impl fmt::Debug for MutualTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MutualTls(..)")
    }
}

fn roots(ca: PemFile<'_>) -> Result<Arc<RootCertStore>, MutualTlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in ca.certificates()? {
        roots.add(certificate).map_err(|error| authority(ca, &error))?;
    }
    Ok(Arc::new(roots))
}

fn authority(ca: PemFile<'_>, reason: &dyn fmt::Display) -> MutualTlsError {
    MutualTlsError::Authority { path: ca.path.to_owned(), reason: reason.to_string() }
}

fn explained(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("no TLS by --replica-tls-cert and --replica-tls-ca: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// An authority and a machine, in files.
    struct Machine(TempDir);

    impl Machine {
        fn new(name: &str) -> Self {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let ca = params.self_signed(&key).unwrap();
            Self::of(name, &ca.pem(), &Issuer::new(params, key))
        }

        fn of(name: &str, ca: &str, issuer: &Issuer<'_, KeyPair>) -> Self {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let cert = params.signed_by(&key, issuer).unwrap();
            let machine = Self(tempfile::tempdir().unwrap());
            for (name, text) in [("cert", cert.pem()), ("key", key.serialize_pem()), ("ca", ca.to_owned())] {
                fs::write(machine.path(name), text).unwrap();
            }
            machine
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn with_ca_of(&self, other: &Self) -> MutualTls {
            let (cert, key, ca) = (self.path("cert"), self.path("key"), other.path("ca"));
            MutualTls::read(MutualTlsFiles { cert: &cert, key: &key, ca: &ca }).unwrap()
        }
    }

    /// Connects the two. Returns the bytes that the server heard, or its error, and the same for the client.
    async fn talk(server: &MutualTls, client: &MutualTls) -> (io::Result<[u8; 2]>, io::Result<[u8; 2]>) {
        let (ours, theirs) = duplex(1 << 16);
        let answers = async {
            let mut wire = server.accept(ours).await?;
            wire.write_all(b"hi").await?;
            wire.flush().await?;
            hear(&mut wire).await
        };
        let asks = async {
            let mut wire = client.connect(theirs).await?;
            wire.write_all(b"ho").await?;
            wire.flush().await?;
            hear(&mut wire).await
        };
        tokio::join!(answers, asks)
    }

    async fn hear(wire: &mut (impl Wire + ?Sized)) -> io::Result<[u8; 2]> {
        let mut heard = [0; 2];
        wire.read_exact(&mut heard).await?;
        Ok(heard)
    }

    #[tokio::test]
    async fn machines_of_one_authority_talk() {
        let machine = Machine::new(NODE_NAME);
        let tls = machine.with_ca_of(&machine);
        let (at_server, at_client) = talk(&tls, &tls).await;
        assert_eq!((&at_server.unwrap(), &at_client.unwrap()), (b"ho", b"hi"));
    }

    #[tokio::test]
    async fn another_authority_or_name_is_refused_by_either_side() {
        let (ours, theirs) = (Machine::new(NODE_NAME), Machine::new(NODE_NAME));
        let tls = ours.with_ca_of(&ours);
        let (at_server, at_client) = talk(&tls, &theirs.with_ca_of(&ours)).await;
        assert!(at_server.unwrap_err().to_string().contains("invalid peer certificate"));
        assert!(at_client.is_err());
        let (at_server, at_client) = talk(&tls, &ours.with_ca_of(&theirs)).await;
        assert!(at_client.unwrap_err().to_string().contains("invalid peer certificate"));
        assert!(at_server.is_err());
        let named = Machine::new("localhost");
        let named = named.with_ca_of(&named);
        let (_, at_client) = talk(&named, &named).await;
        assert!(at_client.unwrap_err().to_string().contains("not valid for name"));
    }

    #[tokio::test]
    async fn plain_text_is_not_heard() {
        let machine = Machine::new(NODE_NAME);
        let tls = machine.with_ca_of(&machine);
        let (ours, mut theirs): (DuplexStream, DuplexStream) = duplex(1 << 16);
        theirs.write_all(b"{\"challenge\": \"\"}\n").await.unwrap();
        let refused = tls.accept(ours).await.map(drop).unwrap_err().to_string();
        assert!(refused.starts_with("no TLS by --replica-tls-cert and --replica-tls-ca"), "{refused}");
    }

    #[test]
    fn files_that_are_of_no_use_are_named() {
        let (ours, theirs) = (Machine::new(NODE_NAME), Machine::new(NODE_NAME));
        let text = ours.path("text");
        fs::write(&text, "no PEM").unwrap();
        let refused = |name: &str, file: &Path| {
            let path = |own: &str| if own == name { file.to_owned() } else { ours.path(own) };
            let (cert, key, ca) = (path("cert"), path("key"), path("ca"));
            MutualTls::read(MutualTlsFiles { cert: &cert, key: &key, ca: &ca }).unwrap_err().to_string()
        };
        for name in ["cert", "key", "ca"] {
            let flag = format!("--replica-tls-{name}");
            assert!(refused(name, &text).contains(&format!("{flag} {} holds no", text.display())));
            assert!(refused(name, &ours.path("none")).contains(&format!("cannot read {flag}")));
        }
        let other = refused("key", &theirs.path("key"));
        assert!(other.starts_with("--replica-tls-cert") && other.contains("--replica-tls-key"), "{other}");
        assert!(other.contains(&theirs.path("key").display().to_string()), "{other}");
    }
}
