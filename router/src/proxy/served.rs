//! The models to serve, with their names and upstreams, from flags or from a file that the launcher writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::ProxyError;
use super::named_upstream::NamedUpstream;
use super::url::UpstreamUrl;

/// A model that is to be served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedEntry {
    /// A number that no other has.
    pub number: usize,
    /// The names that requests may send for it, its own first; none if every request is for it.
    pub names: Vec<String>,
    /// The servers that have it.
    pub upstreams: Vec<UpstreamUrl>,
    /// How it is sent to sleep and woken, where a budget decides about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<Rest>,
}

/// How a model is sent to sleep and woken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rest {
    /// The admin socket of its server.
    pub admin_socket: PathBuf,
    /// The GPUs that it has when it is awake.
    pub devices: Vec<String>,
    /// Whether it is yet to be loaded, when others sleep in its favour. No request is for it until then.
    #[serde(default)]
    pub is_loading: bool,
}

impl ServedEntry {
    /// Whether it is yet to be loaded.
    pub fn is_loading(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.is_loading)
    }
}

/// The models that a file lists.
pub fn read(path: &Path) -> Result<Vec<ServedEntry>, ProxyError> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let read = text.and_then(|text| parse(&text));
    read.map_err(|reason| ProxyError::ModelsFile { path: path.to_owned(), reason })
}

/// The models that the text of a file lists.
pub fn parse(text: &str) -> Result<Vec<ServedEntry>, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The models that flags list: upstreams with the same names serve the same model.
pub fn of_flags(upstreams: &[NamedUpstream]) -> Result<Vec<ServedEntry>, ProxyError> {
    let mut entries: Vec<ServedEntry> = Vec::new();
    for NamedUpstream { names, url } in upstreams {
        if entries.iter().any(|entry| entry.upstreams.contains(url)) {
            return Err(ProxyError::Twice(url.clone()));
        }
        match entries.iter_mut().find(|entry| entry.names == *names) {
            Some(entry) => entry.upstreams.push(url.clone()),
            None => {
                let (number, upstreams) = (entries.len(), vec![url.clone()]);
                entries.push(ServedEntry { number, names: names.clone(), upstreams, rest: None });
            }
        }
    }
    check_names(&entries)?;
    Ok(entries)
}

fn check_names(entries: &[ServedEntry]) -> Result<(), ProxyError> {
    let unnamed = entries.iter().filter(|entry| entry.names.is_empty() && entries.len() > 1);
    if let Some(url) = unnamed.flat_map(|entry| &entry.upstreams).next() {
        return Err(ProxyError::Unnamed(url.clone()));
    }
    let mut owners = BTreeMap::new();
    for (number, entry) in entries.iter().enumerate() {
        for name in &entry.names {
            if owners.insert(name, number).is_some() {
                return Err(ProxyError::NameOfTwo(name.clone()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(flags: &[&str]) -> Result<Vec<ServedEntry>, String> {
        let upstreams: Vec<NamedUpstream> = flags.iter().map(|flag| flag.parse().unwrap()).collect();
        of_flags(&upstreams).map_err(|error| error.to_string())
    }

    #[test]
    fn upstreams_with_the_same_names_serve_one_model() {
        let entries = served(&["a,x=http://a:1", "b=http://b:1", "a,x=http://c:1"]).unwrap();
        let sizes: Vec<_> = entries.iter().map(|entry| (entry.number, entry.upstreams.len())).collect();
        assert_eq!(sizes, [(0, 2), (1, 1)]);
        assert_eq!(served(&["http://a:1", "http://b:1"]).unwrap().len(), 1);
    }

    #[test]
    fn what_would_be_ambiguous_is_refused_by_name() {
        for (flags, reason) in [
            (&["a=http://a:1", "http://b:1"][..], "--upstream http://b:1 has no name"),
            (&["a=http://a:1", "a=http://A:1"], "--upstream http://A:1 is given twice"),
            (&["a=http://a:1", "b,a=http://b:1"], "`a` is the name of two models"),
            (&["a,a=http://a:1"], "`a` is the name of two models"),
        ] {
            let error = served(flags).unwrap_err();
            assert!(error.contains(reason), "{flags:?}: {error}");
        }
    }

    #[test]
    fn a_file_says_what_was_written() {
        let entries = served(&["a,x=unix:/run/a.sock", "b=http://b:1"]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("models.json");
        std::fs::write(&path, serde_json::to_string(&entries).unwrap()).unwrap();
        assert_eq!(read(&path).unwrap(), entries);
        std::fs::write(&path, "[{}]").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("missing field"));
    }
}
