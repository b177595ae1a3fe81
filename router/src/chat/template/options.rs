//! Which files the chat template and the special tokens are read from.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};

use crate::base::boolean::boolean;

/// Files that replace those of the model folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TemplateOptions {
    /// File with the chat template: Jinja, or JSON with `chat_template` [default: that of the model folder]
    #[arg(long, env, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<PathBuf>,

    /// File in the place of the model's tokenizer_config.json, for its chat template and special tokens
    #[arg(long, env, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer_config_path: Option<PathBuf>,

    /// Answer /tokenizer_info with the model's tokenizer_config.json and its chat template
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub enable_tokenizer_info_endpoint: bool,
}
