//! The messages to a fork server, and its answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::child::HIDDEN;
use crate::plan::ProcessSpec;

/// Longest request, and longest answer, in bytes.
const MAX_REQUEST_LEN: usize = 1 << 20;
pub const MAX_ANSWER_LEN: usize = 1 << 16;

/// Why a shard cannot be asked for.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Unsaid {
    #[error("a variable or the current folder, which have to be UTF-8, is not")]
    NotUtf8,
    #[error("its command line and variables have {0} bytes, more than {MAX_REQUEST_LEN}")]
    TooLong(usize),
}

/// A shard to fork.
#[derive(Debug, Serialize)]
pub struct Request<'a> {
    program: String,
    arguments: &'a [String],
    /// All its variables.
    environment: BTreeMap<String, String>,
    /// The current folder.
    folder: String,
}

impl<'a> Request<'a> {
    /// A process that has what this one passes on.
    pub fn of(spec: &'a ProcessSpec) -> Result<Self, Unsaid> {
        let mut environment = BTreeMap::new();
        for variable in std::env::vars_os() {
            let (Ok(name), Ok(value)) = (variable.0.into_string(), variable.1.into_string()) else {
                return Err(Unsaid::NotUtf8);
            };
            environment.insert(name, value);
        }
        HIDDEN.iter().for_each(|name| drop(environment.remove(*name)));
        for (name, value) in &spec.environment {
            match value {
                Some(value) => drop(environment.insert(name.clone(), value.clone())),
                None => drop(environment.remove(name)),
            }
        }
        let folder =
            std::env::current_dir().ok().and_then(|folder| folder.into_os_string().into_string().ok());
        let program = spec.program.to_str().map(str::to_owned);
        let (Some(folder), Some(program)) = (folder, program) else { return Err(Unsaid::NotUtf8) };
        Ok(Self { program, arguments: &spec.args, environment, folder })
    }

    /// Its length in four bytes, and JSON.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Unsaid> {
        let json = serde_json::to_vec(self).expect("texts only");
        if json.len() > MAX_REQUEST_LEN {
            return Err(Unsaid::TooLong(json.len()));
        }
        Ok([&(json.len() as u32).to_le_bytes()[..], &json].concat())
    }
}

/// The answer of a fork server about a shard.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The id of its process.
    Pid(i32),
    /// How it has ended, as `waitpid` says it.
    Status(i32),
    /// It is not forked, for this reason.
    Refused(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{EachStart, Readiness};

    fn spec(flags: &[&str], environment: &[(&str, Option<&str>)]) -> ProcessSpec {
        ProcessSpec {
            name: "shard 0".to_owned(),
            program: "/venv/bin/python".into(),
            args: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)))
                .collect(),
            each_start: EachStart::Group,
            readiness: Readiness::StdoutHeartbeat,
        }
    }

    #[test]
    fn a_request_is_its_length_and_json() {
        let spec = spec(&["-P", "--rank=1"], &[("PATH", None), ("MINE", Some("ü"))]);
        let bytes = Request::of(&spec).and_then(|request| request.to_bytes()).expect("a request");
        let (length, json) = bytes.split_at(4);
        assert_eq!(u32::from_le_bytes(length.try_into().expect("four")) as usize, json.len());
        let said: serde_json::Value = serde_json::from_slice(json).expect("JSON");
        assert_eq!(said["program"], "/venv/bin/python");
        assert_eq!(said["arguments"], serde_json::json!(["-P", "--rank=1"]));
        assert_eq!((&said["environment"]["MINE"], said["environment"].get("PATH")), (&"ü".into(), None));
        let folder = std::env::current_dir().expect("a folder");
        assert_eq!(said["folder"].as_str(), folder.to_str());
    }

    #[test]
    fn a_request_that_is_too_long_is_not_sent() {
        let spec = spec(&[&"x".repeat(MAX_REQUEST_LEN)], &[]);
        let error = Request::of(&spec).and_then(|request| request.to_bytes()).expect_err("too long");
        assert!(matches!(error, Unsaid::TooLong(length) if length > MAX_REQUEST_LEN));
    }

    #[test]
    fn answers_are_one_of_three() {
        let parse = |text: &str| serde_json::from_str::<Answer>(text).ok();
        assert_eq!(parse(r#"{"pid": 7}"#), Some(Answer::Pid(7)));
        assert_eq!(parse(r#"{"status": 256}"#), Some(Answer::Status(256)));
        assert_eq!(parse(r#"{"refused": "no"}"#), Some(Answer::Refused("no".to_owned())));
        for wrong in ["", "{}", r#"{"pid": "7"}"#, r#"{"pid": 7, "status": 1}"#, r#"{"more": 1}"#] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
