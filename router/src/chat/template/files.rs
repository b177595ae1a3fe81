//! Reads the templates of a model folder, and the special tokens that they are rendered with.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use thiserror::Error;

use super::options::TemplateOptions;

/// Name of the template that is rendered unless there is one for tools and there are tools.
pub(super) const DEFAULT: &str = "default";

/// Why a template could not be loaded.
#[derive(Debug, Error)]
#[error("cannot load the chat template {}: {reason}", path.display())]
pub struct ChatTemplateError {
    pub(super) path: PathBuf,
    pub(super) reason: String,
}

impl ChatTemplateError {
    pub(super) fn missing(path: PathBuf) -> Self {
        Self { path, reason: "there is no such file".to_owned() }
    }
}

/// The named templates in a file; `None` if there is no such file or it has none. A file that is not JSON is a template.
pub(super) fn read_sources(path: &Path) -> Result<Option<Vec<(String, String)>>, ChatTemplateError> {
    if path.extension().is_none_or(|extension| extension != "json") {
        let source = read(path)?;
        return Ok(source.map(|source| vec![(DEFAULT.to_owned(), source)]));
    }
    let field = read_json(path)?.and_then(|mut json| json.remove("chat_template"));
    match field {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(vec![(DEFAULT.to_owned(), source)])),
        Some(Value::Array(named)) => Ok(Some(named.iter().filter_map(named_source).collect())),
        Some(_) => {
            let reason = "`chat_template` is neither a string nor a list of named templates".to_owned();
            Err(ChatTemplateError { path: path.to_owned(), reason })
        }
    }
}

/// The named templates in a file. It is an error if there is no such file.
pub(super) fn read_given_sources(path: &Path) -> Result<Vec<(String, String)>, ChatTemplateError> {
    if !path.is_file() {
        return Err(ChatTemplateError::missing(path.to_owned()));
    }
    let reason = "it has no `chat_template`".to_owned();
    read_sources(path)?.ok_or_else(|| ChatTemplateError { path: path.to_owned(), reason })
}

fn named_source(entry: &Value) -> Option<(String, String)> {
    Some((entry["name"].as_str()?.to_owned(), entry["template"].as_str()?.to_owned()))
}

pub(super) fn read_json(path: &Path) -> Result<Option<Map<String, Value>>, ChatTemplateError> {
    let Some(text) = read(path)? else { return Ok(None) };
    let json = serde_json::from_str(&text);
    json.map_err(|error| ChatTemplateError { path: path.to_owned(), reason: error.to_string() })
}

/// tokenizer_config.json, of the model folder or as given, and its path; empty if the folder has none.
pub(super) fn tokenizer_config(
    folder: &Path,
    given: &TemplateOptions,
) -> Result<(PathBuf, Map<String, Value>), ChatTemplateError> {
    let is_given = given.tokenizer_config_path.is_some();
    let path = given.tokenizer_config_path.clone().unwrap_or_else(|| folder.join("tokenizer_config.json"));
    match read_json(&path)? {
        None if is_given => Err(ChatTemplateError::missing(path)),
        config => Ok((path, config.unwrap_or_default())),
    }
}

fn read(path: &Path) -> Result<Option<String>, ChatTemplateError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ChatTemplateError { path: path.to_owned(), reason: error.to_string() }),
    }
}

/// `bos_token`, `eos_token` and so on; each is a string or an object with `content`.
pub(super) fn special_tokens(config: &Map<String, Value>) -> Map<String, Value> {
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    let tokens = config.iter().filter(|(name, _)| name.ends_with("_token"));
    tokens.filter_map(|(name, value)| Some((name.clone(), Value::String(text(value)?)))).collect()
}
