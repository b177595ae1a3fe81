//! Prompts from files: ShareGPT-format conversations and JSON lines.

use std::path::Path;
use std::time::Duration;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use super::{DEFAULT_OUTPUT_LEN, Message, Session, Turn, WorkloadConfig, count, non_empty, read_file};
use crate::error::Error;
use crate::tokens::TokenCounter;

#[derive(Deserialize)]
struct Conversation {
    #[serde(default, alias = "conversation")]
    conversations: Vec<Utterance>,
}

#[derive(Deserialize)]
struct Utterance {
    #[serde(alias = "role")]
    from: String,
    #[serde(alias = "content")]
    value: String,
}

/// Conversations in shuffled order, up to `turns` questions each; answers are asked for at the recorded length.
pub async fn sharegpt_sessions(
    config: &WorkloadConfig,
    path: &Path,
    counter: Option<&TokenCounter>,
) -> Result<Vec<Session>, Error> {
    let mut conversations: Vec<Conversation> = serde_json::from_str(&read_file(path)?).map_err(|error| {
        Error::Dataset { path: path.to_owned(), line: error.line(), problem: error.to_string() }
    })?;
    conversations.shuffle(&mut ChaCha8Rng::seed_from_u64(config.seed));
    let mut sessions = Vec::new();
    for conversation in &conversations {
        let turns = sharegpt_turns(config, conversation, counter).await?;
        if !turns.is_empty() && sessions.len() < config.num_sessions {
            sessions.push(Session { at: None, turns, adapter: None });
        }
    }
    non_empty(path, sessions)
}

async fn sharegpt_turns(
    config: &WorkloadConfig,
    conversation: &Conversation,
    counter: Option<&TokenCounter>,
) -> Result<Vec<Turn>, Error> {
    let mut turns = Vec::new();
    for pair in conversation.conversations.windows(2) {
        if turns.len() < config.turns && is_human(&pair[0]) && !is_human(&pair[1]) {
            turns.push(sharegpt_turn(config, &pair[0].value, &pair[1].value, counter).await?);
        }
    }
    Ok(turns)
}

fn is_human(utterance: &Utterance) -> bool {
    matches!(utterance.from.as_str(), "human" | "user")
}

async fn sharegpt_turn(
    config: &WorkloadConfig,
    question: &str,
    answer: &str,
    counter: Option<&TokenCounter>,
) -> Result<Turn, Error> {
    let recorded = match config.output_len {
        Some(len) => len,
        None => count(counter, answer).await?.unwrap_or_else(|| estimated_tokens(answer)),
    };
    Ok(Turn {
        messages: vec![Message::user(question.to_owned())],
        input_tokens: count(counter, question).await?,
        max_tokens: recorded.max(1),
    })
}

/// Four characters a token: the usual rule of thumb for English, only where nothing can count.
fn estimated_tokens(text: &str) -> u32 {
    u32::try_from(text.chars().count() / 4).unwrap_or(u32::MAX)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Text(String),
    Fields(LineFields),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LineFields {
    #[serde(alias = "text", alias = "inputs", alias = "question")]
    prompt: Option<String>,
    messages: Vec<Message>,
    #[serde(alias = "output_tokens", alias = "output_length", alias = "max_new_tokens")]
    max_tokens: Option<u32>,
    /// Milliseconds.
    timestamp: Option<f64>,
}

/// One request a line, in the file's order: a string, or an object with `prompt` or `messages`.
pub async fn jsonl_sessions(
    config: &WorkloadConfig,
    path: &Path,
    counter: Option<&TokenCounter>,
) -> Result<Vec<Session>, Error> {
    let text = read_file(path)?;
    let mut sessions = Vec::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (index, line) in lines.take(config.num_sessions) {
        let refuse = |problem: String| Error::Dataset { path: path.to_owned(), line: index + 1, problem };
        let fields = parse_line(line).map_err(refuse)?;
        sessions.push(jsonl_session(config, fields, counter).await?);
    }
    non_empty(path, sessions)
}

fn parse_line(line: &str) -> Result<LineFields, String> {
    let fields =
        match serde_json::from_str(line).map_err(|error| format!("not a JSON string or object: {error}"))? {
            Line::Text(text) => LineFields { prompt: Some(text), ..LineFields::default() },
            Line::Fields(fields) => fields,
        };
    if fields.prompt.is_none() && fields.messages.is_empty() {
        return Err("neither `prompt` nor `messages`".into());
    }
    Ok(fields)
}

async fn jsonl_session(
    config: &WorkloadConfig,
    fields: LineFields,
    counter: Option<&TokenCounter>,
) -> Result<Session, Error> {
    let mut messages = fields.messages;
    messages.extend(fields.prompt.map(Message::user));
    let mut input_tokens = None;
    for message in &messages {
        let tokens = count(counter, &message.content).await?;
        input_tokens = tokens.map(|tokens| tokens + input_tokens.unwrap_or(0));
    }
    let max_tokens = config.output_len.or(fields.max_tokens).unwrap_or(DEFAULT_OUTPUT_LEN).max(1);
    let at = fields.timestamp.map(|ms| Duration::from_secs_f64(ms.max(0.0) / 1e3));
    Ok(Session { at, turns: vec![Turn { messages, input_tokens, max_tokens }], adapter: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Source;
    use crate::workload::synthetic::tests::{config, word_counter};

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    const SHARED: &str = r#"[
        {"id": "a", "conversations": [{"from": "human", "value": "one two"}, {"from": "gpt", "value": "three four five"},
            {"from": "human", "value": "six"}, {"from": "gpt", "value": "seven eight"}]},
        {"id": "b", "conversations": [{"from": "gpt", "value": "alone"}]}]"#;

    #[tokio::test]
    async fn sharegpt_asks_for_the_recorded_length() {
        let (file, counter) = (file(SHARED), word_counter());
        let sessions = config(Source::ShareGpt(file.path().into())).build(Some(&counter)).await.unwrap();
        let expected =
            Turn { messages: vec![Message::user("one two".into())], input_tokens: Some(2), max_tokens: 3 };
        assert_eq!(sessions, [Session { at: None, turns: vec![expected], adapter: None }]);
    }

    #[tokio::test]
    async fn sharegpt_gives_as_many_turns_as_asked_for() {
        let (file, counter) = (file(SHARED), word_counter());
        let config = WorkloadConfig { turns: 5, ..config(Source::ShareGpt(file.path().into())) };
        let sessions = config.build(Some(&counter)).await.unwrap();
        assert_eq!(sessions[0].turns.iter().map(|turn| turn.max_tokens).collect::<Vec<_>>(), [3, 2]);
    }

    #[tokio::test]
    async fn jsonl_takes_strings_prompts_and_messages() {
        let file = file(concat!(
            "\"plain\"\n\n",
            "{\"prompt\": \"p q\", \"max_tokens\": 4, \"timestamp\": 1500}\n",
            "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u v\"}]}\n",
        ));
        let sessions = config(Source::Jsonl(file.path().into())).build(Some(&word_counter())).await.unwrap();
        let tokens: Vec<_> =
            sessions.iter().map(|one| (one.turns[0].input_tokens, one.turns[0].max_tokens)).collect();
        assert_eq!(tokens, [(Some(1), 128), (Some(2), 4), (Some(3), 128)]);
        assert_eq!(sessions[1].at, Some(Duration::from_millis(1500)));
        assert_eq!(sessions[2].turns[0].messages[0].role, "system");
    }

    #[tokio::test]
    async fn a_bad_line_is_named_by_file_and_number() {
        let file = file("\"fine\"\n{\"words\": 3}\n");
        let problem = config(Source::Jsonl(file.path().into())).build(None).await.unwrap_err().to_string();
        assert!(problem.ends_with("line 2: neither `prompt` nor `messages`"), "{problem}");
    }

    #[tokio::test]
    async fn an_empty_file_is_refused() {
        let file = file("\n");
        let problem = config(Source::Jsonl(file.path().into())).build(None).await.unwrap_err().to_string();
        assert!(problem.contains("no usable request"), "{problem}");
    }
}
