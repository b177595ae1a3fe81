//! How the launcher takes the flags of TGI that have no counterpart here, by the table of [`flags`](super::flags). Those
//! that change nothing a client can see are accepted with a warning, so that manifests can be kept; those that would
//! change what is served are refused by name.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use thiserror::Error;

use super::flags::{FLAGS, Status, TgiFlag, find, is_on};
use super::variables::VARIABLES;

/// The flags of TGI that were given, in the order of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TgiArgs(Vec<&'static str>);

/// A flag that cannot be ignored.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("--{name} is not supported: {why}")]
pub struct NotSupported {
    name: &'static str,
    why: &'static str,
}

impl TgiArgs {
    /// A line for each that changes nothing; an error for the first that should.
    pub fn warnings(&self) -> Result<Vec<String>, NotSupported> {
        self.0.iter().filter_map(|name| find(name)).filter_map(warning).collect()
    }
}

fn warning(flag: &TgiFlag) -> Option<Result<String, NotSupported>> {
    let name = flag.name;
    match flag.status {
        Status::NoEffect(why) => Some(Ok(format!("--{name} changes nothing here: {why}"))),
        Status::Refused(why) => Some(Err(NotSupported { name, why })),
        Status::Kept(_) | Status::Renamed(_) | Status::Unknown(_) => None,
    }
}

/// Arguments for variables that stand for a flag under another name: where such a variable is set, and the flag's own
/// variable is not. They go before the command line, whose flags win.
pub fn renamed_variables(variable: impl Fn(&str) -> Option<OsString>) -> Vec<OsString> {
    let of_flags = FLAGS.iter().map(|flag| (flag.env, flag.status));
    let of_services = VARIABLES.iter().map(|variable| (variable.name, variable.status));
    let argument = |(name, status)| {
        let Status::Renamed(to) = status else { return None };
        let own = find(to).and_then(|target| variable(target.env));
        let mut argument = OsString::from(format!("--{to}="));
        argument.push(variable(name).filter(|value| own.is_none() && has_value(name, value))?);
        Some(argument)
    };
    of_flags.chain(of_services).filter_map(argument).collect()
}

/// SageMaker sets its variables in any case: to nothing, and the number of GPUs to 0 on machines without any.
fn has_value(name: &str, value: &OsStr) -> bool {
    let is_without_gpu = name == "SM_NUM_GPUS" && value == "0";
    !value.is_empty() && !is_without_gpu
}

/// The flags that only the table declares.
fn declared() -> impl Iterator<Item = &'static TgiFlag> {
    FLAGS.iter().filter(|flag| matches!(flag.status, Status::NoEffect(_) | Status::Refused(_)))
}

impl clap::Args for TgiArgs {
    fn augment_args(command: Command) -> Command {
        declared().filter_map(arg).fold(command, Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn arg(flag: &TgiFlag) -> Option<Arg> {
    let help = match flag.status {
        Status::NoEffect(why) => format!("No effect: {why}"),
        Status::Refused(why) => format!("Refused: {why}"),
        Status::Kept(_) | Status::Renamed(_) | Status::Unknown(_) => return None,
    };
    let arg = Arg::new(flag.name).long(flag.name).env(flag.env).help(help);
    Some(arg.num_args(0..=1).default_missing_value("true"))
}

impl FromArgMatches for TgiArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given =
            |flag: &&TgiFlag| matches.get_one::<String>(flag.name).is_some_and(|value| is_on(value));
        Ok(Self(declared().filter(is_given).map(|flag| flag.name).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn warnings(line: &str) -> Result<Vec<String>, NotSupported> {
        Args::try_parse_from(line.split_whitespace()).expect("valid flags").tgi.warnings()
    }

    #[test]
    fn a_flag_without_effect_gives_one_warning() {
        let lines = warnings(
            "launcher --speculate 3 --trust-remote-code --prometheus-port 9 --usage-stats off --ngrok=false --port 80",
        );
        assert_eq!(
            lines,
            Ok(vec![
                "--trust-remote-code changes nothing here: code of a model folder is never run".into(),
                "--prometheus-port changes nothing here: metrics are at /metrics of --port".into(),
            ])
        );
    }

    #[test]
    fn what_would_change_the_output_is_refused_by_name() {
        let refused = warnings("launcher --speculate 3 --weights-cache-override /w").expect_err("refused");
        assert_eq!(
            refused.to_string(),
            "--weights-cache-override is not supported: name the folder by --model-id"
        );
    }

    #[test]
    fn a_renamed_variable_becomes_its_flag_unless_the_new_one_is_set() {
        let set = |names: &[(&str, &str)]| {
            let names: Vec<(String, OsString)> =
                names.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect();
            renamed_variables(|asked| {
                names.iter().find(|(name, _)| name == asked).map(|(_, value)| value.clone())
            })
        };
        assert_eq!(set(&[("MAX_INPUT_LENGTH", "7")]), ["--max-input-tokens=7"]);
        assert!(set(&[("MAX_INPUT_LENGTH", "7"), ("MAX_INPUT_TOKENS", "8")]).is_empty());
        assert!(set(&[("MAX_INPUT_TOKENS", "8")]).is_empty());
    }
}
