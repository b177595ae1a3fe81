//! Where an upstream is: a URL with nothing but scheme, host and port.

use std::fmt;
use std::str::FromStr;

use axum::http::Uri;
use axum::http::uri::{Authority, PathAndQuery, Scheme};

/// The URL of an upstream. Of equal ones, host names may differ in case.
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

impl FromStr for UpstreamUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|why| format!("`{text}` is no URL: {why}"))?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(format!("`{text}` has no scheme: write http://HOST:PORT or https://HOST:PORT"));
        };
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(format!("`{text}`: an upstream is reached over http or https, not {scheme}"));
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

/// Whether the port is missing, or one.
fn has_good_port(authority: &Authority) -> bool {
    let rest = &authority.as_str()[authority.host().len()..];
    rest.is_empty() || rest[1..].parse::<u16>().is_ok_and(|port| port > 0)
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
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
