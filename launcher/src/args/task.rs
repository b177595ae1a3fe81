//! The subcommands: what the launcher does instead of serving.

use clap::{Args as ClapArgs, Subcommand};

use super::model::HubArgs;

/// What to do instead of serving.
#[derive(Debug, Clone, Subcommand)]
pub enum Task {
    /// Fetch a model ahead of time and print the folder it is in
    ///
    /// What was fetched before is kept, and a connection that breaks is taken up where it broke. HF_TOKEN opens gated
    /// models, HF_HOME says where models are kept, HF_ENDPOINT where the hub is.
    ///
    /// Exit codes: 0 it is there; 1 it cannot be had.
    Download(DownloadArgs),

    /// Say what becomes of each argument of a text-generation-launcher command line
    ///
    /// The environment variables of text-generation-inference that are set are looked at, too. Nothing is started, and
    /// neither the model nor the machine is looked at.
    ///
    /// Exit codes: 0 this command line would be accepted; 2 something in it is refused or unknown.
    CheckTgiArgs(CheckArgs),
}

/// What to check.
#[derive(Debug, Clone, ClapArgs)]
pub struct CheckArgs {
    /// Write one JSON object instead of lines
    #[arg(long)]
    pub json: bool,

    /// Arguments as text-generation-launcher takes them
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub line: Vec<String>,
}

/// What to fetch.
#[derive(Debug, Clone, ClapArgs)]
pub struct DownloadArgs {
    /// Hugging Face Hub id of the model
    pub model_id: String,

    /// Where it comes from
    #[command(flatten)]
    pub hub: HubArgs,
}
