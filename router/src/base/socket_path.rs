//! How long the path of a Unix socket may be. The system refuses longer ones when they are used, without saying why.

use std::path::PathBuf;

/// Bytes that a path may have: the system keeps it in 108, with a zero behind it.
const MAX_BYTES: usize = 107;

/// Refuses a path that no socket can have.
pub fn check(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("the path of a socket is empty".to_owned());
    }
    if path.len() > MAX_BYTES {
        let len = path.len();
        return Err(format!("the path of a socket has at most {MAX_BYTES} bytes, and `{path}` has {len}"));
    }
    Ok(())
}

/// The path in the text of a flag.
pub fn parse(text: &str) -> Result<PathBuf, String> {
    check(text).map(|()| PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_that_of_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let path = |len: usize| {
            let start = format!("{}/", folder.path().display());
            format!("{start}{}", "s".repeat(len - start.len()))
        };
        for (len, is_legal) in [(MAX_BYTES, true), (MAX_BYTES + 1, false)] {
            let path = path(len);
            assert_eq!(std::os::unix::net::UnixListener::bind(&path).is_ok(), is_legal);
            assert_eq!(check(&path).is_ok(), is_legal);
        }
        let refused = check(&path(200)).unwrap_err();
        assert!(refused.contains("at most 107 bytes") && refused.ends_with("has 200"), "{refused}");
    }
}
