//! The facts that a server may tell about its tokenizer: tokenizer_config.json with the chat template that is used,
//! and without the names of files and folders of this machine.

use std::path::Path;

use serde_json::{Map, Value};

use super::files::{ChatTemplateError, tokenizer_config};
use super::options::TemplateOptions;

/// The settings of the tokenizer; `None` unless the server is asked to tell them. `template` is the chat template.
pub fn tokenizer_info(
    folder: &Path,
    options: &TemplateOptions,
    template: Option<String>,
) -> Result<Option<Map<String, Value>>, ChatTemplateError> {
    if !options.enable_tokenizer_info_endpoint {
        return Ok(None);
    }
    let (_, mut settings) = tokenizer_config(folder, options)?;
    settings.retain(|name, value| !names_a_path(name, value));
    settings.entry("tokenizer_class").or_insert(Value::Null);
    settings.insert("chat_template".to_owned(), template.into());
    Ok(Some(settings))
}

/// Whether a setting names a file or a folder, as those do that a tokenizer was saved with.
fn names_a_path(name: &str, value: &Value) -> bool {
    let is_path = |text: &str| Path::new(text).is_absolute();
    name == "name_or_path"
        || ["_file", "_path", "_dir"].iter().any(|ending| name.ends_with(ending))
        || value.as_str().is_some_and(is_path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_told_only_on_request_and_without_paths() {
        let folder = tempfile::tempdir().unwrap();
        let settings = json!({
            "bos_token": {"content": "<s>", "lstrip": false},
            "model_max_length": 4096,
            "name_or_path": "me/model",
            "tokenizer_file": "tokenizer.json",
            "cache": "/home/me/cache",
            "chat_template": "of the file",
        });
        std::fs::write(folder.path().join("tokenizer_config.json"), settings.to_string()).unwrap();
        let told = |enable_tokenizer_info_endpoint| {
            let options = TemplateOptions { enable_tokenizer_info_endpoint, ..TemplateOptions::default() };
            tokenizer_info(folder.path(), &options, Some("served".to_owned())).unwrap()
        };
        assert_eq!(told(false), None);
        let expected = json!({
            "bos_token": {"content": "<s>", "lstrip": false},
            "model_max_length": 4096,
            "chat_template": "served",
            "tokenizer_class": null,
        });
        assert_eq!(told(true).map(Value::Object), Some(expected));
    }
}
