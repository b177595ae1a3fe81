//! `launcher check-tgi-args`: what becomes of each argument of a command line of TGI, and of the variables that are set.
//! Names and reasons come from the tables, values and what belongs together from the launcher's own parser.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{Arg, Command, FromArgMatches};
use serde::Serialize;

use crate::args::{Args, without_variables};
use crate::plan::contradiction;
use crate::tgi::flags::{FLAGS, OTHER_DEFAULTS, Status, TgiFlag, find, is_on};
use crate::tgi::variables::{self, Variable};

/// Names by which manifests start the launcher, which may stand at the head of the line.
const PROGRAMS: [&str; 2] = ["text-generation-launcher", "launcher"];

/// The finding about one argument or variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    /// The argument as it was given, without its value, which may be a secret.
    argument: String,
    status: &'static str,
    note: String,
}

/// The findings about the whole command line.
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
    // An unknown flag takes the next word as its value, so that the value is not reported as unknown, too.
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
            return Finding::new(argument, Status::Unknown("neither a flag nor the value of one"));
        };
        match find(name) {
            Some(flag) => self.known(argument, flag, given.value.as_deref()),
            None if own(name, &self.command).is_some() => self.parsed(
                argument,
                name,
                given.value.as_deref(),
                Status::Kept("a flag of Penstock, not of TGI"),
            ),
            None => Finding::new(argument, Status::Unknown("neither TGI nor Penstock has this flag")),
        }
    }

    fn known(&self, argument: &str, flag: &TgiFlag, value: Option<&str>) -> Finding {
        match flag.status {
            Status::NoEffect(_) | Status::Refused(_) if !value.is_none_or(is_on) => {
                Finding::new(argument, Status::NoEffect("it is off"))
            }
            Status::Kept(_) | Status::Renamed(_) => self.parsed(argument, flag.name, value, flag.status),
            status => Finding::new(argument, status),
        }
    }

    /// The finding of the launcher's parser about this flag alone.
    fn parsed(&self, argument: &str, name: &str, value: Option<&str>, status: Status) -> Finding {
        match self.command.clone().try_get_matches_from(["launcher".to_owned(), written(name, value)]) {
            Err(error) if is_about_the_flag(&error) => Finding::refused(argument, &first_line(&error)),
            _ => Finding::new(argument, status),
        }
    }

    fn variable(&self, name: &str, value: &str) -> Option<Finding> {
        let flag = FLAGS.iter().find(|flag| flag.env == name);
        if flag.is_some_and(|flag| self.is_on_the_line(flag.name)) {
            return Some(Finding::new(name, Status::NoEffect("the flag is given, too, and wins")));
        }
        if name == "HOSTNAME" && value.parse::<IpAddr>().is_err() {
            return Some(Finding::new(
                name,
                Status::NoEffect("the name of a machine is no address to listen on"),
            ));
        }
        match (flag, variables::find(name)) {
            (Some(flag), _) => Some(self.known(name, flag, Some(value))),
            (None, Some(variable)) => Some(self.other_variable(name, variable, value)),
            (None, None) => None,
        }
    }

    /// A variable that is no flag's in TGI, and may be one here.
    fn other_variable(&self, name: &str, variable: &Variable, value: &str) -> Finding {
        if let Status::Renamed(to) = variable.status {
            return match find(to) {
                _ if self.is_on_the_line(to) => {
                    Finding::new(name, Status::NoEffect("the flag is given, too, and wins"))
                }
                Some(flag) if matches!(flag.status, Status::Kept(_)) => {
                    self.parsed(name, to, Some(value), variable.status)
                }
                Some(flag) => self.known(name, flag, Some(value)),
                None => Finding::new(name, variable.status),
            };
        }
        let flag = name.to_lowercase().replace('_', "-");
        if own(&flag, &self.command).is_some() {
            return self.parsed(name, &flag, Some(value), variable.status);
        }
        Finding::new(name, variable.status)
    }

    fn is_on_the_line(&self, name: &str) -> bool {
        self.given.iter().any(|given| given.name.as_deref() == Some(name))
    }

    /// The finding about the whole command line, if the parts alone are right.
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

    /// The variables as the flags that they stand for.
    fn kept_variables(&self) -> Vec<String> {
        let argument = |flag: &TgiFlag| {
            let value = self.variables.get(flag.env).filter(|_| !self.is_on_the_line(flag.name))?;
            let is_kept = matches!(flag.status, Status::Kept(_) | Status::Renamed(_));
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

/// Whether the error is about the flag, not about another one that is missing; help and version are no errors.
fn is_about_the_flag(error: &clap::Error) -> bool {
    error.use_stderr() && error.kind() != ErrorKind::MissingRequiredArgument
}

/// The error in one line, with the correction if the parser gives it on the same line.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    lines.fold(first, |text, line| format!("{text} {line}"))
}

impl Finding {
    fn new(argument: &str, status: Status) -> Self {
        let (status, note) = match status {
            Status::Kept(note) => ("kept", note.to_owned()),
            Status::Renamed(to) => ("renamed", format!("--{to}")),
            Status::NoEffect(note) => ("no effect", note.to_owned()),
            Status::Refused(note) => ("refused", note.to_owned()),
            Status::Unknown(note) => ("unknown", note.to_owned()),
        };
        Self { argument: argument.to_owned(), status, note }
    }

    fn refused(argument: &str, why: &str) -> Self {
        Self { argument: argument.to_owned(), status: "refused", note: why.to_owned() }
    }

    fn not_given(name: &str, note: &str) -> Self {
        Self { argument: format!("--{name}"), status: "not given", note: note.to_owned() }
    }

    fn is_accepted(&self) -> bool {
        !matches!(self.status, "refused" | "unknown")
    }
}

impl Report {
    /// The findings as JSON, for programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and a bool") + "\n"
    }
}

impl fmt::Display for Report {
    /// A line for each, in three columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.arguments.iter().map(|finding| finding.argument.chars().count()).max().unwrap_or(0);
        for Finding { argument, status, note } in &self.arguments {
            let line = format!("{argument:width$}  {status:9}  {note}");
            writeln!(f, "{}", line.trim_end())?;
        }
        let summary = if self.is_accepted { "would accept" } else { "would not accept" };
        writeln!(f, "launcher {summary} this command line")
    }
}
