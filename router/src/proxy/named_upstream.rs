//! An upstream as a flag has it: its URL, and the names of the model that it serves where there are several models.

use std::str::FromStr;

use super::url::UpstreamUrl;

/// An upstream, and the names that requests may send to be answered by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedUpstream {
    /// The names, that of the model first; none where all requests are for one model.
    pub names: Vec<String>,
    /// Its address.
    pub url: UpstreamUrl,
}

impl FromStr for NamedUpstream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_url = text.starts_with("unix:") || text.split('=').next().is_some_and(|it| it.contains("://"));
        let (names, url) = match text.split_once('=') {
            Some((names, url)) if !is_url => (names.split(',').map(name).collect::<Result<_, _>>()?, url),
            _ => (Vec::new(), text),
        };
        Ok(Self { names, url: url.parse()? })
    }
}

/// A name that requests may send.
fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.contains(char::is_control) {
        return Err("a name must have a character that can be seen, and no control characters".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_before_the_url() {
        for (text, names, url) in [
            ("http://a:1", &[][..], "http://a:1"),
            ("unix:/run/x=y.sock", &[], "unix:/run/x=y.sock"),
            ("org/chat=http://a:1", &["org/chat"], "http://a:1"),
            ("llama3:8b,lora=unix:/a", &["llama3:8b", "lora"], "unix:/a"),
        ] {
            let upstream: NamedUpstream = text.parse().unwrap();
            assert_eq!(
                (upstream.names.as_slice(), upstream.url.to_string()),
                (&names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()[..], url.to_owned()),
                "{text}"
            );
        }
        for (text, reason) in [
            ("=http://a:1", "a name must have"),
            ("a,=http://a:1", "a name must have"),
            ("a=", "is no URL"),
            ("a=b=http://a:1", "is no URL"),
            ("http://a/x=y", "has no path"),
        ] {
            let error = text.parse::<NamedUpstream>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
