//! Where a server listens, with its flags: the address, the port, and the certificate.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use serde::{Deserialize, Serialize};

use super::tls::TlsFiles;
use crate::base::socket_path;

// A server without keys and TLS should not be reachable from other machines.
const LOOPBACK: &str = "127.0.0.1";

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ListenOptions {
    /// Address to listen on; loopback by default, 0.0.0.0 for every interface
    #[arg(long, env, default_value = LOOPBACK)]
    pub hostname: String,

    /// Port to listen on
    #[arg(long, short, env, default_value_t = 3000)]
    pub port: u16,

    /// Unix socket to listen on in the place of --hostname and --port; only the user who runs the server may open it
    #[arg(long, env, value_name = "PATH", value_parser = socket_path::parse)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uds: Option<PathBuf>,

    /// Certificate in PEM format, with those that signed it: the server then speaks HTTPS only, and gRPC over TLS
    #[arg(long, env, requires = "tls_key")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, in PEM format
    #[arg(long, env, requires = "tls_cert")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
}

impl ListenOptions {
    /// Shells and containers set `HOSTNAME` to the name of the machine, which is no address to listen on.
    pub fn ignore_machine_name(&mut self, matches: &ArgMatches) {
        let from_env = matches.value_source("hostname") == Some(ValueSource::EnvVariable);
        if from_env && self.hostname.parse::<IpAddr>().is_err() {
            self.hostname = LOOPBACK.to_owned();
        }
    }

    /// The scheme of the server's URLs: `http`, or `https` if it has a certificate.
    pub fn scheme(&self) -> &'static str {
        if self.tls_cert.is_some() { "https" } else { "http" }
    }

    /// The certificate and its key, if the server serves HTTPS.
    pub fn tls_files(&self) -> Option<TlsFiles<'_>> {
        Some(TlsFiles { cert: self.tls_cert.as_deref()?, key: self.tls_key.as_deref()? })
    }
}
