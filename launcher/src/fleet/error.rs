//! Why several models cannot be served, or one of them not be loaded or unloaded.

use thiserror::Error;

use crate::plan::PlanError;
use crate::words::NotUtf8;

/// Why several models cannot be served, or one of them not be loaded or unloaded.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum FleetError {
    #[error("--{flag} cannot be used with --model: {reason}")]
    NotWithSeveral { flag: &'static str, reason: &'static str },
    #[error("--model {name}: `{flag}` is a flag of the whole server, not of one model")]
    OfServer { name: String, flag: String },
    #[error("--model {name}: {reason}")]
    Flags { name: String, reason: String },
    #[error("--model {name}: {reason}")]
    Plan { name: String, reason: PlanError },
    #[error(
        "--model {name}: --wake-on-request false cannot be used with --max-awake-models or --max-awake-gb: a model that was sent to sleep for another would never wake up"
    )]
    NeverWoken { name: String },
    #[error("`{0}` is the name of two models: name each model, and each adapter, once")]
    NameOfTwo(String),
    #[error(
        "the models need {needed} GPUs, but {free} of {visible} are free; lower --num-shard or unload a model"
    )]
    TooFewGpus { needed: u32, free: usize, visible: usize },
    #[error(
        "{most} models are loaded at once, and as many are; unload one, or start with a higher --max-models"
    )]
    TooMany { most: usize },
    #[error("--model is given {given} times, but --max-models is {most}")]
    MoreThanMost { given: usize, most: usize },
    #[error("there is no model `{0}`")]
    Unknown(String),
    #[error("the model `{0}` is still loading, or being unloaded")]
    Busy(String),
    #[error("`{0}` is the last model, and a server has one at least")]
    Last(String),
    #[error("the model `{name}` could not be loaded: {reason}")]
    NotLoaded { name: String, reason: String },
    #[error("the server starts or ends; models are loaded while it serves")]
    NotServing,
    #[error(transparent)]
    NotUtf8(#[from] NotUtf8),
}
