//! The words of this process' command line, for launchers that it starts with other flags.

use penstock_router::base::boolean::boolean;
use thiserror::Error;

use crate::args::{is_boolean, without_variables};

/// Words of other bytes cannot be passed on.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("a command line, which has to be UTF-8, is not")]
pub struct NotUtf8;

/// The words that this process was started with, but for its name.
pub fn given() -> Result<Vec<String>, NotUtf8> {
    let words = std::env::args_os().skip(1).map(|word| word.into_string());
    words.collect::<Result<_, _>>().map_err(|_| NotUtf8)
}

/// The words without these flags and their values.
pub fn without(flags: &[&str], words: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let (flag, has_value) = match word.split_once('=') {
            Some((flag, _)) => (flag, true),
            None => (word.as_str(), false),
        };
        match flag.strip_prefix("--").filter(|flag| flags.contains(flag)) {
            None => kept.push(word.clone()),
            Some(flag) if !has_value => drop(words.next_if(|next| is_value(flag, next))),
            Some(_) => {}
        }
    }
    kept
}

/// Whether this word is the value of the flag before it.
fn is_value(flag: &str, word: &str) -> bool {
    let command = without_variables();
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag));
    arg.is_some_and(
        |arg| if is_boolean(arg) { boolean(word).is_ok() } else { arg.get_action().takes_values() },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_goes_with_its_value() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let given =
            "--port 80 --model-id m --api-key=k --access-log-addresses --json-output true --hostname ::";
        let flags = ["port", "api-key", "access-log-addresses", "json-output", "hostname"];
        assert_eq!(without(&flags, &words(given)), words("--model-id m"));
        assert_eq!(without(&["port"], &words("--port")), [""; 0]);
    }
}
