//! Why a benchmark cannot run. What goes wrong with single requests is a [`crate::record::Failure`], not an error.

use std::path::PathBuf;

/// A benchmark that cannot start or cannot write what it found. Each message is one line that says what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A flag, or a combination of flags, makes no sense.
    #[error("{flag} {value}: {problem}")]
    Flag {
        /// The flag as typed.
        flag: &'static str,
        /// The value of the flag.
        value: String,
        /// Why the value is refused, or which values are allowed.
        problem: String,
    },
    /// The server cannot be asked at all.
    #[error("{0}")]
    Server(String),
    /// A data set cannot be read.
    #[error("{path}, line {line}: {problem}")]
    Dataset {
        /// The file.
        path: PathBuf,
        /// Line or entry, from 1.
        line: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The tokenizer cannot be loaded or used.
    #[error("--tokenizer {0}: {1}")]
    Tokenizer(String, String),
    /// Standard output or a thread could not be had.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl Error {
    /// A flag whose value is refused.
    pub fn flag(flag: &'static str, value: impl ToString, problem: impl Into<String>) -> Self {
        Self::Flag { flag, value: value.to_string(), problem: problem.into() }
    }
}
