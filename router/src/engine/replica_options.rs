//! The flags about replicas of the model.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};
use penstock_scheduler::PlacementPolicy;
use serde::{Deserialize, Serialize};

use super::mutual_tls::{MutualTls, MutualTlsError, MutualTlsFiles};
use super::replica_access::{ReplicaAccess, ReplicaAccessError};
use super::replica_address::ReplicaAddress;
use super::replica_secret::{ReplicaSecret, ReplicaSecretError};

/// The flags.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ReplicaOptions {
    /// Shards of one more replica of the model that somebody else starts, as unix:PATH with the sockets of further ranks
    /// behind colons, or tcp:HOST:PORT with the addresses of further ranks behind slashes; give it again for several
    /// [default: none]
    #[arg(long, env, value_delimiter = ',', action = ArgAction::Append, value_name = "ADDRESS")]
    pub replica: Vec<ReplicaAddress>,

    /// File with the secret that shards on TCP ask for [default: none is sent]
    #[arg(long, env)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica_secret_file: Option<PathBuf>,

    /// Certificate of this machine in PEM format, of --replica-tls-ca and with the name penstock-node: connections to shards
    /// on TCP and between machines are then TLS, in which both sides show one [default: they are not encrypted]
    #[arg(long, env, requires = "replica_tls_key")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica_tls_cert: Option<PathBuf>,

    /// Private key of --replica-tls-cert, in PEM format
    #[arg(long, env, requires = "replica_tls_ca")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica_tls_key: Option<PathBuf>,

    /// Certificate of the authority, in PEM format, that those of all machines are of
    #[arg(long, env, requires = "replica_tls_cert")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica_tls_ca: Option<PathBuf>,

    /// Unix socket on which replicas are listed, added, drained and removed while the server runs; only the user who runs the
    /// server may open it [default: there is none]
    #[arg(long, env, value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_socket: Option<PathBuf>,

    /// Seconds that blocks of the cache may take from a replica of the role prefill to one that generates; when they are over,
    /// the prompt is computed again
    #[arg(long, env, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub block_transfer_timeout: u64,

    /// Which replica a request goes to
    #[arg(long, env, value_enum, default_value = "prefix")]
    pub replica_policy: ReplicaPolicy,
}

impl ReplicaOptions {
    /// The secret in the file, if there is one.
    pub fn secret(&self) -> Result<Option<ReplicaSecret>, ReplicaSecretError> {
        self.replica_secret_file.as_deref().map(ReplicaSecret::read).transpose()
    }

    /// The files of TLS, if there are any.
    pub fn tls_files(&self) -> Option<MutualTlsFiles<'_>> {
        let (cert, key) = (self.replica_tls_cert.as_deref()?, self.replica_tls_key.as_deref()?);
        Some(MutualTlsFiles { cert, key, ca: self.replica_tls_ca.as_deref()? })
    }

    /// TLS by these files, if there are any.
    pub fn tls(&self) -> Result<Option<MutualTls>, MutualTlsError> {
        self.tls_files().map(MutualTls::read).transpose()
    }

    /// The requirements of shards on TCP: the secret and the encryption.
    pub fn access(&self) -> Result<ReplicaAccess, ReplicaAccessError> {
        Ok(ReplicaAccess { secret: self.secret()?, tls: self.tls()? })
    }
}

/// How requests are divided among replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaPolicy {
    /// The one that has most of its prompt in its cache, or least to do; it moves to another while it waits if that pays
    Prefix,
    /// Each in turn, to compare with
    RoundRobin,
}

impl From<ReplicaPolicy> for PlacementPolicy {
    fn from(policy: ReplicaPolicy) -> Self {
        match policy {
            ReplicaPolicy::Prefix => Self::LeastWork,
            ReplicaPolicy::RoundRobin => Self::RoundRobin,
        }
    }
}
