//! The names of the served model: which one responses carry, and which ones clients may use.

use std::path::{Component, Path};

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};

use crate::base::boolean::boolean;
use crate::base::error::Error;

/// How a folder in the cache of the Hugging Face Hub begins: `models--org--name/snapshots/COMMIT`.
const CACHED: &str = "models--";

/// The flags about the names of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ModelNames {
    /// Name of the model as clients see and send it; several may be given, and responses carry the first
    /// [default: --model-id, or the last part of its path]
    #[arg(long, env, num_args = 1.., value_delimiter = ',', action = ArgAction::Append, value_parser = name)]
    pub served_model_name: Vec<String>,

    /// Accept every `model` that a request names, for clients that cannot be told the name; responses carry the
    /// model's own
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub accept_any_model: bool,
}

fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.contains(char::is_control) {
        return Err("a name must have a character that can be seen, and no control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// The served model, as clients name it. No name is the path of a folder, unless the operator chose it as a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedModel {
    /// The first name, which responses carry.
    pub id: String,
    /// The name of the model itself: its id on the hub, or the last part of its path.
    pub root: String,
    /// All names that the server lists, the id first.
    names: Vec<String>,
    /// The value of `--model-id`, if clients may use it as a name: clients that were set up with the path of a folder
    /// still work.
    given: Option<String>,
    accepts_any: bool,
}

impl ServedModel {
    /// The model of `--model-id`, which is a folder or an id on the hub.
    pub fn new(model_id: &str, flags: &ModelNames) -> Self {
        let root = public_name(model_id);
        let (names, given) = match flags.served_model_name.as_slice() {
            [] => (vec![root.clone()], Some(model_id.to_owned())),
            names => (names.to_vec(), None),
        };
        Self { id: names[0].clone(), root, names, given, accepts_any: flags.accept_any_model }
    }

    /// All names that the server lists, the id first.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Accepts no name, the names of the model, and what clients send if they know no name ("tgi", "dummy", a URL).
    pub fn check(&self, name: Option<&str>) -> Result<(), Error> {
        if self.accepts_any { Ok(()) } else { self.check_known(name) }
    }

    /// Like [`Self::check`], also if every `model` is accepted: for names that say more than which model is meant.
    pub fn check_known(&self, name: Option<&str>) -> Result<(), Error> {
        let Some(name) = name else { return Ok(()) };
        let is_placeholder = ["", "tgi", "dummy"].contains(&name) || name.contains("://");
        if is_placeholder || self.is_name(name) {
            return Ok(());
        }
        Err(Error::UnknownModel { name: name.chars().take(200).collect(), served: self.names.clone() })
    }

    /// Whether the model has this name, or one of which this is the last part.
    fn is_name(&self, name: &str) -> bool {
        let is_it = |served: &String| name == served || name == last_part(served);
        self.given.as_deref() == Some(name) || self.names.iter().any(is_it)
    }
}

fn last_part(name: &str) -> &str {
    name.trim_end_matches('/').rsplit('/').next().unwrap_or(name)
}

/// The name of a model that may be shown: an id on the hub as it is; of a folder the last part of its path, or the id on
/// the hub if the folder is in the hub's cache.
fn public_name(model_id: &str) -> String {
    let path = Path::new(model_id);
    let looks_like_a_path = path.is_absolute() || model_id.starts_with(['.', '~']);
    if !looks_like_a_path && !path.is_dir() {
        return model_id.to_owned();
    }
    let parts = normal_parts(path);
    let cached = parts.iter().find_map(|part| part.strip_prefix(CACHED));
    if let Some(cached) = cached {
        return cached.replace("--", "/");
    }
    let last = parts.last().filter(|_| path.file_name().is_some()).cloned();
    // `.` and `..` have a last part only in full.
    let of_full_path = || normal_parts(&path.canonicalize().unwrap_or_default()).pop();
    last.or_else(of_full_path).unwrap_or_else(|| "model".to_owned())
}

fn normal_parts(path: &Path) -> Vec<String> {
    let normal = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    });
    normal.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str], accept_any_model: bool) -> ServedModel {
        let served_model_name = names.iter().map(|name| (*name).to_owned()).collect();
        ServedModel::new("org/tiny", &ModelNames { served_model_name, accept_any_model })
    }

    #[test]
    fn the_path_of_a_folder_is_no_public_name() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("my-model");
        std::fs::create_dir(&inside).unwrap();
        let path = inside.to_str().unwrap();
        for given in [path.to_owned(), format!("{path}/"), format!("{path}/.")] {
            let model = ServedModel::new(&given, &ModelNames::default());
            assert_eq!((model.id.as_str(), model.root.as_str()), ("my-model", "my-model"));
            assert_eq!(model.check(Some(&given)), Ok(()), "a client that was set up with the path");
            let error = model.check(Some("other")).unwrap_err().to_string();
            assert!(!error.contains(path), "{error}");
        }
        for (given, id) in [
            ("/nowhere/models--org--tiny-1b/snapshots/0123", "org/tiny-1b"),
            ("/", "model"),
            ("./x", "x"),
            ("org/tiny", "org/tiny"),
            ("tiny", "tiny"),
        ] {
            assert_eq!(ServedModel::new(given, &ModelNames::default()).id, id);
        }
        let here = ServedModel::new(".", &ModelNames::default()).id;
        assert!(!here.contains('/') && !here.contains('.'), "{here}");
    }

    #[test]
    fn clients_may_use_every_name_and_its_last_part() {
        let model = named(&[], false);
        for name in ["org/tiny", "tiny", "", "tgi", "dummy", "http://host/v1"] {
            assert_eq!(model.check(Some(name)), Ok(()), "{name}");
        }
        assert_eq!(model.check(None), Ok(()));
        let model = named(&["team/chat", "gpt-4o"], false);
        assert_eq!((model.id.as_str(), model.root.as_str()), ("team/chat", "org/tiny"));
        for name in ["team/chat", "chat", "gpt-4o"] {
            assert_eq!(model.check(Some(name)), Ok(()), "{name}");
        }
        for name in ["org/tiny", "tiny", "gpt-4"] {
            let served = ["team/chat", "gpt-4o"].map(str::to_owned).to_vec();
            assert_eq!(model.check(Some(name)), Err(Error::UnknownModel { name: name.to_owned(), served }));
        }
    }

    #[test]
    fn any_model_may_be_accepted_but_not_any_adapter() {
        let model = named(&[], true);
        assert_eq!(model.check(Some("gpt-4o")), Ok(()));
        assert!(model.check_known(Some("gpt-4o")).is_err());
        assert_eq!(model.id, "org/tiny");
    }
}
