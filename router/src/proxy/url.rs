//! Where an upstream is: a URL with nothing but scheme, host and port, or a Unix socket of this machine.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::str::FromStr;

use axum::http::Uri;
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use serde::{Deserialize, Serialize};

use crate::base::socket_path;

/// How the path of a Unix socket begins, and the scheme of URIs that lead there.
const UNIX: &str = "unix";

/// The URL of an upstream. Of equal ones, host names may differ in case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UpstreamUrl {
    scheme: Scheme,
    authority: Authority,
}

impl UpstreamUrl {
    /// The URL of this path there.
    pub fn with_path(&self, path: PathAndQuery) -> Uri {
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        uri.path_and_query(path).build().expect("all three parts are valid")
    }

    /// The client knows upstreams by scheme and authority, so a path is an authority in hexadecimal digits.
    fn of_socket(path: &str) -> Result<Self, String> {
        socket_path::check(path)?;
        let digits: String = path.bytes().map(|byte| format!("{byte:02x}")).collect();
        let authority = digits.parse().map_err(|why| format!("`{path}`: {why}"))?;
        let scheme = UNIX.parse().map_err(|why| format!("`{path}`: {why}"))?;
        Ok(Self { scheme, authority })
    }
}

impl FromStr for UpstreamUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(UNIX).and_then(|rest| rest.strip_prefix(':')) {
            return Self::of_socket(path);
        }
        let uri: Uri = text.parse().map_err(|why| format!("`{text}` is no URL: {why}"))?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(format!("`{text}` has no scheme: write http://HOST:PORT or https://HOST:PORT"));
        };
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(format!(
                "`{text}`: an upstream is reached over http, https or unix:PATH, not {scheme}"
            ));
        }
        if authority.as_str().contains('@') {
            return Err("an upstream has no user and no password: clients send its API key".to_owned());
        }
        if authority.host().is_empty() || !has_good_port(&authority) {
            return Err(format!("`{text}` has no host, or no port from 1 to 65535 behind the colon"));
        }
        match parts.path_and_query {
            Some(path) if path != "/" => {
                Err(format!("`{text}`: an upstream has no path, but the URL has `{path}`"))
            }
            _ => Ok(Self { scheme, authority }),
        }
    }
}

/// The Unix socket that a URI leads to; `None` if it leads to a host.
pub fn socket_of(scheme: &str, authority: &str) -> Option<PathBuf> {
    if scheme != UNIX {
        return None;
    }
    let digits = (0..authority.len()).step_by(2).map(|at| authority.get(at..at + 2));
    let bytes = digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect::<Option<Vec<u8>>>()?;
    Some(OsString::from_vec(bytes).into())
}

/// Whether the port is missing, or one.
fn has_good_port(authority: &Authority) -> bool {
    let rest = &authority.as_str()[authority.host().len()..];
    rest.is_empty() || rest[1..].parse::<u16>().is_ok_and(|port| port > 0)
}

impl TryFrom<String> for UpstreamUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<UpstreamUrl> for String {
    fn from(url: UpstreamUrl) -> Self {
        url.to_string()
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match socket_of(self.scheme.as_str(), self.authority.as_str()) {
            Some(path) => write!(f, "{UNIX}:{}", path.display()),
            None => write!(f, "{}://{}", self.scheme, self.authority),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<UpstreamUrl, String> {
        text.parse()
    }

    #[test]
    fn a_url_of_a_host_is_kept_and_given_paths() {
        for text in ["http://a:3000", "https://gpu-1.example.org", "http://[::1]:80", "http://10.0.0.7:3000"]
        {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        let url = parse("http://a:3000/").unwrap();
        let path = PathAndQuery::from_static("/v1/models?x=%20");
        assert_eq!(url.with_path(path).to_string(), "http://a:3000/v1/models?x=%20");
    }

    #[test]
    fn a_unix_socket_is_found_again_in_the_uri_of_a_path() {
        let url = parse("unix:/run/my models/a.sock").unwrap();
        assert_eq!(url.to_string(), "unix:/run/my models/a.sock");
        let uri = url.with_path(PathAndQuery::from_static("/health"));
        let found = socket_of(uri.scheme_str().unwrap(), uri.authority().unwrap().as_str());
        assert_eq!((found, uri.path()), (Some("/run/my models/a.sock".into()), "/health"));
        assert_eq!(socket_of("http", "2f"), None);
        let too_long = parse(&format!("unix:/{}", "s".repeat(200))).unwrap_err();
        assert!(too_long.contains("at most 107 bytes"), "{too_long}");
        assert!(parse("unix:").is_err());
    }

    #[test]
    fn what_is_more_or_less_than_that_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "is no URL"),
            ("a:3000", "no scheme"),
            ("/a", "no scheme"),
            ("ftp://a", "not ftp"),
            ("http://", "is no URL"),
            ("http://a:", "no port"),
            ("http://a:70000", "no port"),
            ("http://a:0", "no port"),
            ("http://a b", "is no URL"),
            ("http://a/v1", "no path, but the URL has `/v1`"),
            ("http://a?x=1", "no path, but the URL has `/?x=1`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let error = parse("http://user:secret@a").unwrap_err();
        assert!(error.contains("no password") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn names_of_hosts_are_equal_in_any_case() {
        assert_eq!(parse("http://A:1"), parse("HTTP://a:1"));
        assert_ne!(parse("http://a:1"), parse("https://a:1"));
    }
}
