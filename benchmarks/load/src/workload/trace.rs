//! Recorded traffic: when requests came and how long they were, with made text of that length.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use super::synthetic::TextMaker;
use super::{DEFAULT_OUTPUT_LEN, Message, Session, Turn, WorkloadConfig, non_empty, read_file};
use crate::calendar;
use crate::error::Error;
use crate::tokens::TokenCounter;

/// Tokens of one block of a Mooncake trace: requests that name the same block share its text.
const BLOCK_LEN: u32 = 512;

#[derive(Deserialize)]
struct MooncakeLine {
    /// Milliseconds.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// A Mooncake trace: JSON lines of `timestamp`, `input_length`, `output_length`, `hash_ids`.
pub async fn mooncake_sessions(
    config: &WorkloadConfig,
    path: &Path,
    counter: Option<&TokenCounter>,
) -> Result<Vec<Session>, Error> {
    let text = read_file(path)?;
    let mut blocks = Blocks::new(counter, config.seed);
    let mut sessions = Vec::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (index, line) in lines.take(config.num_sessions) {
        let refuse = |problem: String| Error::Dataset { path: path.to_owned(), line: index + 1, problem };
        let line: MooncakeLine = serde_json::from_str(line).map_err(|error| refuse(error.to_string()))?;
        let prompt = blocks.prompt(index, &line.hash_ids, line.input_length).await?;
        sessions.push(timed_session(
            config,
            line.timestamp / 1e3,
            prompt,
            line.input_length,
            line.output_length,
        ));
    }
    non_empty(path, from_first(sessions))
}

/// An Azure trace: CSV of `TIMESTAMP,ContextTokens,GeneratedTokens`.
pub async fn azure_sessions(
    config: &WorkloadConfig,
    path: &Path,
    counter: Option<&TokenCounter>,
) -> Result<Vec<Session>, Error> {
    let text = read_file(path)?;
    let mut blocks = Blocks::new(counter, config.seed);
    let mut sessions = Vec::new();
    let rows = text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty());
    for (index, row) in rows.take(config.num_sessions) {
        let problem = "expected `2023-11-16 18:15:46.68,<context tokens>,<generated tokens>`";
        let (at, input, output) = parse_azure_row(row).ok_or_else(|| Error::Dataset {
            path: path.to_owned(),
            line: index + 1,
            problem: problem.into(),
        })?;
        let prompt = blocks.prompt(index, &[], input).await?;
        sessions.push(timed_session(config, at, prompt, input, output));
    }
    non_empty(path, from_first(sessions))
}

fn timed_session(config: &WorkloadConfig, at: f64, prompt: String, input: u32, output: u32) -> Session {
    let output = config.output_len.unwrap_or(if output == 0 { DEFAULT_OUTPUT_LEN } else { output });
    let turn = Turn { messages: vec![Message::user(prompt)], input_tokens: Some(input), max_tokens: output };
    Session { at: Some(Duration::from_secs_f64(at.max(0.0))), turns: vec![turn], adapter: None }
}

/// Orders sessions by time and lets the first one start at zero.
fn from_first(mut sessions: Vec<Session>) -> Vec<Session> {
    sessions.sort_by_key(|session| session.at);
    let first = sessions.first().and_then(|session| session.at).unwrap_or_default();
    for session in &mut sessions {
        session.at = session.at.map(|at| at - first);
    }
    sessions
}

/// The texts of blocks, made on first use; the same number always gives the same text.
struct Blocks<'c> {
    maker: TextMaker<'c>,
    seed: u64,
    texts: HashMap<u64, String>,
}

impl<'c> Blocks<'c> {
    fn new(counter: Option<&'c TokenCounter>, seed: u64) -> Self {
        Self { maker: TextMaker::new(counter), seed, texts: HashMap::new() }
    }

    /// Full blocks of the request first; what is left of the length is text of its own.
    async fn prompt(&mut self, index: usize, hash_ids: &[u64], len: u32) -> Result<String, Error> {
        let num_full = (len / BLOCK_LEN) as usize;
        let mut parts = Vec::new();
        for id in hash_ids.iter().take(num_full) {
            parts.push(self.block(*id).await?);
        }
        let rest = len - BLOCK_LEN * parts.len() as u32;
        if rest > 0 || parts.is_empty() {
            let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ !(index as u64));
            parts.push(self.maker.text(&mut rng, rest).await?);
        }
        Ok(parts.join(" "))
    }

    async fn block(&mut self, id: u64) -> Result<String, Error> {
        if !self.texts.contains_key(&id) {
            let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ id);
            let text = self.maker.text(&mut rng, BLOCK_LEN).await?;
            self.texts.insert(id, text);
        }
        Ok(self.texts[&id].clone())
    }
}

fn parse_azure_row(row: &str) -> Option<(f64, u32, u32)> {
    let mut cells = row.split(',').map(str::trim);
    let at = calendar::parse(cells.next()?)?;
    Some((at, cells.next()?.parse().ok()?, cells.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Source;
    use crate::workload::synthetic::tests::config;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn prompt(session: &Session) -> Vec<&str> {
        session.turns[0].messages[0].content.split(' ').collect()
    }

    #[tokio::test]
    async fn mooncake_requests_share_the_blocks_they_name() {
        let file = file(concat!(
            "{\"timestamp\": 3000, \"input_length\": 1030, \"output_length\": 7, \"hash_ids\": [1, 2, 3]}\n",
            "{\"timestamp\": 3500, \"input_length\": 1024, \"output_length\": 8, \"hash_ids\": [1, 9]}\n",
        ));
        let sessions = config(Source::Mooncake(file.path().into())).build(None).await.unwrap();
        let (first, second) = (prompt(&sessions[0]), prompt(&sessions[1]));
        assert_eq!((first.len(), second.len()), (1030, 1024));
        assert_eq!(first[..512], second[..512]);
        assert_ne!(first[512..1024], second[512..]);
        assert_eq!([sessions[0].at, sessions[1].at], [0, 500].map(|ms| Some(Duration::from_millis(ms))));
        assert_eq!(sessions[1].turns[0].max_tokens, 8);
    }

    #[tokio::test]
    async fn azure_rows_give_times_and_lengths() {
        let file = file(concat!(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n",
            "2023-11-16 18:15:46.5000000,10,3\n",
            "2023-11-16 18:16:00.0000000,20,4\n",
        ));
        let sessions = config(Source::Azure(file.path().into())).build(None).await.unwrap();
        assert_eq!(sessions[1].at.map(|at| at.as_millis()), Some(13_500));
        assert_eq!((prompt(&sessions[1]).len(), sessions[1].turns[0].max_tokens), (20, 4));
    }

    #[tokio::test]
    async fn a_row_that_is_no_row_is_named() {
        let file = file("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n");
        let problem = config(Source::Azure(file.path().into())).build(None).await.unwrap_err().to_string();
        assert!(problem.contains("line 2") && problem.contains("expected"), "{problem}");
    }
}
