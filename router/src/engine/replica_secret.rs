//! The secret that shards ask for which listen on TCP.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tonic::metadata::{Ascii, MetadataValue};

/// A shorter one could be guessed.
const MIN_BYTES: usize = 16;
const MAX_BYTES: usize = 1024;

/// The secret; never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ReplicaSecret(MetadataValue<Ascii>);

/// Why a file has no secret.
#[derive(Debug, Error)]
pub enum ReplicaSecretError {
    /// It cannot be read.
    #[error("--replica-secret-file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// It holds something else.
    #[error("--replica-secret-file {} does not hold one word of {MIN_BYTES} to {MAX_BYTES} ASCII characters", .0.display())]
    Unusable(PathBuf),
}

impl ReplicaSecret {
    /// The word in this file.
    pub fn read(path: &Path) -> Result<Self, ReplicaSecretError> {
        let unreadable = |reason| ReplicaSecretError::Unreadable { path: path.to_owned(), reason };
        let text = fs::read_to_string(path).map_err(unreadable)?;
        Self::new(text.trim()).ok_or_else(|| ReplicaSecretError::Unusable(path.to_owned()))
    }

    fn new(word: &str) -> Option<Self> {
        let is_usable =
            (MIN_BYTES..=MAX_BYTES).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_graphic());
        let mut value = word.parse::<MetadataValue<Ascii>>().ok().filter(|_| is_usable)?;
        value.set_sensitive(true);
        Some(Self(value))
    }

    /// The word, for proofs that it is known.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(super) fn metadata(&self) -> MetadataValue<Ascii> {
        self.0.clone()
    }
}

impl fmt::Debug for ReplicaSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplicaSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_one_word_that_is_long_enough_and_is_never_shown() {
        let secret = ReplicaSecret::new("0123456789abcdef").unwrap();
        assert_eq!(secret.metadata().to_str().unwrap(), "0123456789abcdef");
        assert_eq!(format!("{secret:?} {:?}", secret.metadata()), "ReplicaSecret(..) Sensitive");
        for word in ["", "0123456789abcde", "0123456789abcde f", "0123456789abcdeé", &"x".repeat(1025)] {
            assert_eq!(ReplicaSecret::new(word), None, "{word}");
        }
    }

    #[test]
    fn the_file_is_named_where_it_is_of_no_use() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "too short\n").unwrap();
        let error = ReplicaSecret::read(file.path()).unwrap_err().to_string();
        assert!(
            error.contains(&file.path().display().to_string()) && !error.contains("too short"),
            "{error}"
        );
        fs::write(file.path(), "0123456789abcdef\n").unwrap();
        assert_eq!(
            ReplicaSecret::read(file.path()).unwrap(),
            ReplicaSecret::new("0123456789abcdef").unwrap()
        );
        assert!(
            ReplicaSecret::read(Path::new("/nonexistent")).unwrap_err().to_string().contains("/nonexistent")
        );
    }
}
