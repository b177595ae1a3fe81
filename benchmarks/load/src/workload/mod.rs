//! The requests: sessions of one or more turns, made or read before the run starts.

mod adapters;
mod dataset;
mod synthetic;
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::tokens::TokenCounter;

pub use self::adapters::{Adapters, Spread};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Its text.
    pub content: String,
}

impl Message {
    /// A message of the user.
    pub fn user(content: String) -> Self {
        Self { role: "user".into(), content }
    }

    /// A reply of the model.
    pub fn assistant(content: String) -> Self {
        Self { role: "assistant".into(), content }
    }
}

/// One request of a session: the messages that it adds to the history.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Messages added by this turn.
    pub messages: Vec<Message>,
    /// Tokens of these messages, where they were counted.
    pub input_tokens: Option<u32>,
    /// Longest answer asked for.
    pub max_tokens: u32,
}

/// Requests that follow one another: each is sent after the previous response and contains its reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Its start time in a trace.
    pub at: Option<Duration>,
    /// Its requests, at least one.
    pub turns: Vec<Turn>,
    /// The adapter that they ask for; `None`: the model.
    pub adapter: Option<String>,
}

/// Where requests come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Made text of drawn lengths.
    Random,
    /// The same text for every request.
    Prompt(String),
    /// A ShareGPT-format JSON file.
    ShareGpt(PathBuf),
    /// One prompt a line.
    Jsonl(PathBuf),
    /// A Mooncake-format trace: times, lengths and shared blocks.
    Mooncake(PathBuf),
    /// An Azure-format trace: times and lengths.
    Azure(PathBuf),
}

/// Shape of the requests.
#[derive(Clone, Debug)]
pub struct WorkloadConfig {
    /// Where they come from.
    pub source: Source,
    /// How many sessions to prepare.
    pub num_sessions: usize,
    /// Mean tokens of a made prompt.
    pub input_len: u32,
    /// Mean tokens asked for; datasets that know their own lengths override it unless it was given.
    pub output_len: Option<u32>,
    /// Lengths are drawn from mean · (1 ± ratio).
    pub range_ratio: f64,
    /// Tokens at the start of a prompt that many share.
    pub prefix_len: u32,
    /// How many different shared prefixes there are.
    pub num_prefixes: u32,
    /// Most requests of one session.
    pub turns: usize,
    /// The adapters that the requests are spread over.
    pub adapters: Adapters,
    /// Seed of everything drawn.
    pub seed: u64,
}

/// Tokens asked for where neither a flag nor the data says how many.
pub const DEFAULT_OUTPUT_LEN: u32 = 128;

impl WorkloadConfig {
    /// Makes or reads the sessions. Files may hold fewer than asked for, never none.
    pub async fn build(&self, counter: Option<&TokenCounter>) -> Result<Vec<Session>, Error> {
        let mut sessions = self.sessions(counter).await?;
        self.adapters.assign(&mut sessions, self.seed);
        Ok(sessions)
    }

    async fn sessions(&self, counter: Option<&TokenCounter>) -> Result<Vec<Session>, Error> {
        match &self.source {
            Source::Random => synthetic::random_sessions(self, counter).await,
            Source::Prompt(text) => synthetic::fixed_sessions(self, text, counter).await,
            Source::ShareGpt(path) => dataset::sharegpt_sessions(self, path, counter).await,
            Source::Jsonl(path) => dataset::jsonl_sessions(self, path, counter).await,
            Source::Mooncake(path) => trace::mooncake_sessions(self, path, counter).await,
            Source::Azure(path) => trace::azure_sessions(self, path, counter).await,
        }
    }
}

async fn count(counter: Option<&TokenCounter>, text: &str) -> Result<Option<u32>, Error> {
    match counter {
        Some(counter) => Ok(Some(counter.count(text).await?)),
        None => Ok(None),
    }
}

fn read_file(path: &std::path::Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::File {
        action: "read",
        path: path.to_owned(),
        source,
    })
}

fn non_empty(path: &std::path::Path, sessions: Vec<Session>) -> Result<Vec<Session>, Error> {
    if sessions.is_empty() {
        return Err(Error::Dataset {
            path: path.to_owned(),
            line: 1,
            problem: "no usable request in this file".into(),
        });
    }
    Ok(sessions)
}
