//! `launcher check-tgi-args`: what becomes of each argument of a command line of TGI, and of the variables that are set.
//! Names and reasons come from the tables, values and what belongs together from the launcher's own parser.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{Arg, Command, FromArgMatches};
use serde::Serialize;

use super::flags::{FLAGS, Fate, OTHER_DEFAULTS, TgiFlag, find, is_on};
use super::variables;
use crate::args::{Args, without_variables};
use crate::plan::contradiction;

/// Names by which manifests start the launcher, which may stand at the head of the line.
const PROGRAMS: [&str; 2] = ["text-generation-launcher", "launcher"];

/// What is said of one argument or variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    /// As it was given, without its value, which may be a secret.
    argument: String,
    fate: &'static str,
    note: String,
}

/// What is said of all.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether the launcher would accept the line.
    pub is_accepted: bool,
    arguments: Vec<Finding>,
}

/// A flag as it was given.
struct Given {
    argument: String,
    /// Its long name without dashes, if it is one.
    name: Option<String>,
    value: Option<String>,
}

/// Explains a command line, and those of the variables that TGI reads.
pub fn check(line: &[String], variables: &BTreeMap<String, String>) -> Report {
    let mut command = without_variables();
    command.build();
    let checker = Checker { given: split(line, &command), command, variables };
    let mut arguments: Vec<Finding> = checker.given.iter().map(|given| checker.flag(given)).collect();
    arguments.extend(variables.iter().filter_map(|(name, value)| checker.variable(name, value)));
    if arguments.iter().all(Finding::is_accepted) {
        arguments.extend(checker.whole(line));
    }
    arguments.extend(checker.other_defaults());
    Report { is_accepted: arguments.iter().all(Finding::is_accepted), arguments }
}

/// Into flags with their values: what follows a flag and is none itself is its value.
fn split(line: &[String], command: &Command) -> Vec<Given> {
    let mut given: Vec<Given> = Vec::new();
    for (index, text) in line.iter().enumerate() {
        match given.last_mut() {
            _ if text.starts_with('-') => given.push(flag(text, command)),
            Some(flag) if flag.value.is_none() && takes_value(flag, command) => {
                flag.value = Some(text.clone())
            }
            None if index == 0 && is_program(text) => {}
            _ => given.push(Given { argument: text.clone(), name: None, value: None }),
        }
    }
    given
}

fn is_program(text: &str) -> bool {
    Path::new(text).file_name().is_some_and(|name| PROGRAMS.iter().any(|program| name == *program))
}

/// `--name`, `--name=value`, `-n`, `-nvalue` or `-n=value`.
fn flag(text: &str, command: &Command) -> Given {
    let (argument, value) = match text.split_once('=') {
        Some((argument, value)) => (argument, Some(value)),
        None => (text, None),
    };
    if let Some(name) = argument.strip_prefix("--") {
        return given(argument, Some(name.to_owned()), value);
    }
    let Some(short) = argument.chars().nth(1) else { return given(argument, None, value) };
    let (head, rest) = argument.split_at(1 + short.len_utf8());
    let long = command.get_arguments().find(|arg| arg.get_short() == Some(short)).and_then(Arg::get_long);
    given(head, long.map(str::to_owned), value.or(Some(rest).filter(|rest| !rest.is_empty())))
}

fn given(argument: &str, name: Option<String>, value: Option<&str>) -> Given {
    Given { argument: argument.to_owned(), name, value: value.map(str::to_owned) }
}

fn takes_value(given: &Given, command: &Command) -> bool {
    let Some(name) = given.name.as_deref() else { return false };
    // What nobody knows is given its value, so that the value is not said to be unknown beside it.
    own(name, command).is_none_or(|arg| arg.get_action().takes_values())
}

/// The launcher's flag of this name, or of this former name.
fn own<'a>(name: &str, command: &'a Command) -> Option<&'a Arg> {
    let is_named = |arg: &&Arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|names| names.contains(&name))
    };
    command.get_arguments().find(is_named)
}

struct Checker<'a> {
    command: Command,
    given: Vec<Given>,
    variables: &'a BTreeMap<String, String>,
}

impl Checker<'_> {
    fn flag(&self, given: &Given) -> Finding {
        let argument = &given.argument;
        let Some(name) = given.name.as_deref() else {
            return Finding::new(argument, Fate::Unknown("neither a flag nor the value of one"));
        };
        match find(name) {
            Some(flag) => self.known(argument, flag, given.value.as_deref()),
            None if own(name, &self.command).is_some() => self.parsed(
                argument,
                name,
                given.value.as_deref(),
                Fate::Kept("a flag of Penstock, not of TGI"),
            ),
            None => Finding::new(argument, Fate::Unknown("neither TGI nor Penstock has this flag")),
        }
    }

    fn known(&self, argument: &str, flag: &TgiFlag, value: Option<&str>) -> Finding {
        match flag.fate {
            Fate::NoEffect(_) | Fate::Refused(_) if !value.is_none_or(is_on) => {
                Finding::new(argument, Fate::NoEffect("it is off"))
            }
            Fate::Kept(_) | Fate::Renamed(_) => self.parsed(argument, flag.name, value, flag.fate),
            fate => Finding::new(argument, fate),
        }
    }

    /// What the launcher's parser says of this flag alone.
    fn parsed(&self, argument: &str, name: &str, value: Option<&str>, fate: Fate) -> Finding {
        match self.command.clone().try_get_matches_from(["launcher".to_owned(), written(name, value)]) {
            Err(error) if is_about_the_flag(&error) => Finding::refused(argument, &first_line(&error)),
            _ => Finding::new(argument, fate),
        }
    }

    fn variable(&self, name: &str, value: &str) -> Option<Finding> {
        let flag = FLAGS.iter().find(|flag| flag.env == name);
        if flag.is_some_and(|flag| self.is_on_the_line(flag.name)) {
            return Some(Finding::new(name, Fate::NoEffect("the flag is given, too, and wins")));
        }
        if name == "HOSTNAME" && value.parse::<IpAddr>().is_err() {
            return Some(Finding::new(
                name,
                Fate::NoEffect("the name of a machine is no address to listen on"),
            ));
        }
        match (flag, variables::find(name)) {
            (Some(flag), _) => Some(self.known(name, flag, Some(value))),
            (None, Some(variable)) if name == "PREFIX_CACHING" => {
                Some(self.parsed(name, "prefix-caching", Some(value), variable.fate))
            }
            (None, Some(variable)) => Some(Finding::new(name, variable.fate)),
            (None, None) => None,
        }
    }

    fn is_on_the_line(&self, name: &str) -> bool {
        self.given.iter().any(|given| given.name.as_deref() == Some(name))
    }

    /// What is wrong with the whole, where nothing is with the parts.
    fn whole(&self, line: &[String]) -> Option<Finding> {
        let arguments =
            line.iter().skip(usize::from(line.first().is_some_and(|text| is_program(text)))).cloned();
        let program = std::iter::once("launcher".to_owned());
        let matches =
            self.command.clone().try_get_matches_from(program.chain(self.kept_variables()).chain(arguments));
        let problem = match matches {
            Ok(matches) => contradiction(&Args::from_arg_matches(&matches).ok()?)?.to_string(),
            Err(error) if error.use_stderr() => first_line(&error),
            Err(_) => return None,
        };
        Some(Finding::refused("together", &problem))
    }

    /// As the flags that they stand for.
    fn kept_variables(&self) -> Vec<String> {
        let argument = |flag: &TgiFlag| {
            let value = self.variables.get(flag.env).filter(|_| !self.is_on_the_line(flag.name))?;
            let is_kept = matches!(flag.fate, Fate::Kept(_) | Fate::Renamed(_));
            is_kept.then(|| written(flag.name, Some(value)))
        };
        FLAGS.iter().filter_map(argument).collect()
    }

    fn other_defaults(&self) -> Vec<Finding> {
        let is_set = |name: &str| {
            let env = find(name).map(|flag| flag.env).unwrap_or_default();
            let address = |value: &&String| env != "HOSTNAME" || value.parse::<IpAddr>().is_ok();
            self.is_on_the_line(name) || self.variables.get(env).filter(address).is_some()
        };
        let unset = OTHER_DEFAULTS.iter().filter(|(name, _)| !is_set(name));
        unset.map(|(name, note)| Finding::not_given(name, note)).collect()
    }
}

fn written(name: &str, value: Option<&str>) -> String {
    value.map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}"))
}

/// Not about another one that is missing beside it; and help and version are no errors.
fn is_about_the_flag(error: &clap::Error) -> bool {
    error.use_stderr() && error.kind() != ErrorKind::MissingRequiredArgument
}

/// What is wrong, with what would be right where the parser says so on the same line.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    lines.fold(first, |told, line| format!("{told} {line}"))
}

impl Finding {
    fn new(argument: &str, fate: Fate) -> Self {
        let (fate, note) = match fate {
            Fate::Kept(note) => ("kept", note.to_owned()),
            Fate::Renamed(to) => ("renamed", format!("--{to}")),
            Fate::NoEffect(note) => ("no effect", note.to_owned()),
            Fate::Refused(note) => ("refused", note.to_owned()),
            Fate::Unknown(note) => ("unknown", note.to_owned()),
        };
        Self { argument: argument.to_owned(), fate, note }
    }

    fn refused(argument: &str, why: &str) -> Self {
        Self { argument: argument.to_owned(), fate: "refused", note: why.to_owned() }
    }

    fn not_given(name: &str, note: &str) -> Self {
        Self { argument: format!("--{name}"), fate: "not given", note: note.to_owned() }
    }

    fn is_accepted(&self) -> bool {
        !matches!(self.fate, "refused" | "unknown")
    }
}

impl Report {
    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and a bool") + "\n"
    }
}

impl fmt::Display for Report {
    /// A line for each, in three columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.arguments.iter().map(|finding| finding.argument.chars().count()).max().unwrap_or(0);
        for Finding { argument, fate, note } in &self.arguments {
            let line = format!("{argument:width$}  {fate:9}  {note}");
            writeln!(f, "{}", line.trim_end())?;
        }
        let verdict = if self.is_accepted { "would accept" } else { "would not accept" };
        writeln!(f, "launcher {verdict} this command line")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(line: &str, variables: &[(&str, &str)]) -> (bool, Vec<(String, &'static str, String)>) {
        let line: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let variables =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let report = check(&line, &variables);
        let told = report.arguments.into_iter().filter(|finding| finding.fate != "not given");
        (report.is_accepted, told.map(|finding| (finding.argument, finding.fate, finding.note)).collect())
    }

    fn fates(line: &str, variables: &[(&str, &str)]) -> Vec<(String, &'static str)> {
        findings(line, variables).1.into_iter().map(|(argument, fate, _)| (argument, fate)).collect()
    }

    fn named(expected: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
        expected.iter().map(|(argument, fate)| ((*argument).to_owned(), *fate)).collect()
    }

    #[test]
    fn every_argument_has_one_fate_in_the_order_given() {
        let line = "text-generation-launcher --model-id m -p 80 --max-input-length=7 --trust-remote-code --quantize awq \
                    --device cpu --guess 3 stray";
        assert_eq!(
            fates(line, &[]),
            named(&[
                ("--model-id", "kept"),
                ("-p", "kept"),
                ("--max-input-length", "renamed"),
                ("--trust-remote-code", "no effect"),
                ("--quantize", "refused"),
                ("--device", "kept"),
                ("--guess", "unknown"),
                ("stray", "unknown"),
            ])
        );
        assert!(!findings(line, &[]).0);
        assert!(findings("--model-id m -p80 --env --sharded true --json-output", &[]).0);
    }

    #[test]
    fn a_value_that_the_parser_refuses_is_refused_with_its_words() {
        let (accepted, told) = findings("--kv-cache-dtype fp8_e5m2", &[]);
        assert!(!accepted);
        assert_eq!(told[0].1, "refused");
        assert!(
            told[0].2.contains("invalid value 'fp8_e5m2'") && told[0].2.contains("fp8_e4m3fn"),
            "{told:?}"
        );
        assert_eq!(fates("--port", &[]), named(&[("--port", "refused")]));
    }

    #[test]
    fn what_is_off_is_no_reason_to_refuse() {
        assert!(findings("--quantize= --ngrok false", &[("LORA_ADAPTERS", "")]).0);
    }

    #[test]
    fn variables_that_are_set_are_explained_and_flags_win_over_them() {
        let set = [
            ("HF_MODEL_ID", "m"),
            ("HOSTNAME", "pod-7"),
            ("MAX_INPUT_LENGTH", "7"),
            ("PATH", "/bin"),
            ("PORT", "80"),
            ("PREFIX_CACHING", "0"),
            ("ROCM_USE_X", "1"),
        ];
        assert_eq!(
            fates("--port 81", &set),
            named(&[
                ("--port", "kept"),
                ("HF_MODEL_ID", "unknown"),
                ("HOSTNAME", "no effect"),
                ("MAX_INPUT_LENGTH", "renamed"),
                ("PORT", "no effect"),
                ("PREFIX_CACHING", "refused"),
                ("ROCM_USE_X", "no effect"),
            ])
        );
    }

    #[test]
    fn what_does_not_fit_together_is_told_once_the_parts_are_right() {
        let together = |line: &str, variables: &[(&str, &str)]| {
            let (accepted, mut told) = findings(line, variables);
            told.pop().filter(|last| last.0 == "together").map(|last| (accepted, last.2))
        };
        let (accepted, note) = together("--sharded false --num-shard 2", &[]).expect("contradicts");
        assert!(!accepted && note.contains("--sharded false contradicts --num-shard 2"), "{note}");
        let (_, note) = together("--revision main", &[]).expect("needs a model");
        assert!(note.contains("--model-id"), "{note}");
        assert_eq!(together("--revision main", &[("MODEL_ID", "m")]), None);
    }

    #[test]
    fn defaults_that_differ_are_told_where_the_flag_is_not_given() {
        let not_given = |line: &str| {
            let line: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let told = check(&line, &BTreeMap::new()).arguments.into_iter();
            told.filter(|finding| finding.fate == "not given").count()
        };
        assert_eq!(not_given("--model-id m --hostname 0.0.0.0 --cors-allow-origin *"), 0);
        assert_eq!(not_given("--port 80"), OTHER_DEFAULTS.len());
    }

    #[test]
    fn columns_are_aligned_and_no_value_is_shown() {
        let line = ["--api-key", "hidden", "-p", "80"].map(str::to_owned);
        let text = check(&line, &BTreeMap::new()).to_string();
        assert!(!text.contains("hidden"), "{text}");
        let columns: Vec<_> = text.lines().take(2).map(|line| line.find("kept")).collect();
        assert_eq!(columns[0], columns[1], "{text}");
    }
}
