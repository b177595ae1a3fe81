//! Reads the command line and the environment. A flag wins over its variable, and that over the variables that stand for
//! it: those of TGI's former names, of hosting services and of what starts several nodes, and RUST_LOG.

use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use penstock_router::base::boolean::boolean;
use penstock_router::observe::log_level::LogLevel;

use super::stand_ins::stand_ins;
use super::{Args, Task};
use crate::tgi::{renamed_variables, storage_folder};

/// The name of [`Task::CheckTgiArgs`].
const CHECK: &str = "check-tgi-args";

impl Args {
    /// Parses the command line and the environment; the error prints help or what is wrong, and has the exit code.
    pub fn from_command_line() -> Result<Self, clap::Error> {
        let mut line = std::env::args_os();
        let (program, arguments) = (line.next().unwrap_or_default(), line.collect::<Vec<_>>());
        // The variables of a TGI server are the subject of the check: they need not be right.
        if arguments.first().is_some_and(|first| first == CHECK) {
            let matches = without_variables().try_get_matches_from([vec![program], arguments].concat())?;
            return Self::from_arg_matches(&matches);
        }
        Self::parse_with(program, arguments, |name| std::env::var_os(name))
    }

    fn parse_with(
        program: OsString,
        arguments: Vec<OsString>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, clap::Error> {
        let command = Self::command().mut_args(|arg| without_empty_variable(arg, &variable));
        let renamed = [renamed_variables(&variable), stand_ins(&variable)].concat();
        let matches = command.try_get_matches_from([vec![program], renamed, arguments].concat())?;
        let mut args = Self::from_arg_matches(&matches)?;
        args.router.listen.ignore_machine_name(&matches);
        let rust_log = variable("RUST_LOG").and_then(|text| text.into_string().ok());
        args.router.log.log_level =
            Some(LogLevel::choose(args.router.log.log_level.take(), rust_log.as_deref()));
        args.use_storage(variable("AIP_STORAGE_URI").and_then(|uri| uri.into_string().ok()))?;
        Ok(args)
    }

    /// Vertex AI names the folder of a model in AIP_STORAGE_URI.
    fn use_storage(&mut self, uri: Option<String>) -> Result<(), clap::Error> {
        if self.model.model_id.is_none()
            && !self.models.are_several()
            && !matches!(self.task, Some(Task::Download(_)))
        {
            let folder = storage_folder(uri.as_deref());
            self.model.model_id =
                folder.map_err(|reason| Self::command().error(ErrorKind::ValueValidation, reason))?;
        }
        Ok(())
    }
}

/// The launcher's flags, read from a command line only.
pub fn without_variables() -> Command {
    Args::command().mut_args(|arg| arg.env(None::<&'static str>))
}

/// Whether a flag takes true or false.
pub fn is_boolean(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == ValueParser::from(boolean).type_id()
}

/// A variable of a boolean flag or of a list that is set to nothing counts as not set.
fn without_empty_variable(arg: Arg, variable: impl Fn(&str) -> Option<OsString>) -> Arg {
    let value = arg.get_env().and_then(|name| variable(&name.to_string_lossy()));
    let is_empty = value.is_some_and(|value| value.is_empty());
    // An empty list is none, not one with an empty value.
    let may_be_empty = is_boolean(&arg) || arg.get_value_delimiter().is_some();
    if may_be_empty && is_empty { arg.env(None::<&'static str>) } else { arg }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the variables that stand for others: clap itself reads the environment of the test.
    fn parse(flags: &[&str], variables: &[(&str, &str)]) -> Result<Args, clap::Error> {
        let variable = |asked: &str| {
            variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| OsString::from(value))
        };
        Args::parse_with("launcher".into(), flags.iter().map(OsString::from).collect(), variable)
    }

    #[test]
    fn variables_of_hosting_services_stand_for_flags() {
        let args = parse(
            &[],
            &[
                ("HF_MODEL_ID", "org/m"),
                ("HF_MODEL_REVISION", "v1"),
                ("SM_NUM_GPUS", "2"),
                ("AIP_HTTP_PORT", "8080"),
            ],
        )
        .expect("valid");
        assert_eq!(args.model.model_id.as_deref(), Some("org/m"));
        assert_eq!(args.model.hub.revision.as_deref(), Some("v1"));
        assert_eq!((args.shards.num_shard, args.router.listen.port), (Some(2), 8080));
        let args =
            parse(&["--model-id=mine", "--port=81"], &[("HF_MODEL_ID", "org/m"), ("AIP_HTTP_PORT", "8080")]);
        let args = args.expect("valid");
        assert_eq!((args.model.model_id.as_deref(), args.router.listen.port), (Some("mine"), 81));
        let on_cpu = parse(&[], &[("SM_NUM_GPUS", "0"), ("HF_MODEL_ID", "")]).expect("valid");
        assert_eq!((on_cpu.shards.num_shard, on_cpu.model.model_id), (None, None));
    }

    #[test]
    fn a_folder_of_vertex_is_the_model_and_a_bucket_is_refused() {
        let model = |uri| parse(&[], &[("AIP_STORAGE_URI", uri)]).map(|args| args.model.model_id);
        assert_eq!(model("/gcs/models/m").expect("valid").as_deref(), Some("/gcs/models/m"));
        assert_eq!(model("").expect("valid"), None);
        let refused = model("gs://bucket/m").expect_err("refused");
        assert!(refused.to_string().contains("AIP_STORAGE_URI is gs://bucket/m"), "{refused}");
        assert_eq!(refused.exit_code(), 2);
        let named = parse(&["--model-id=m"], &[("AIP_STORAGE_URI", "gs://bucket/m")]).expect("valid");
        assert_eq!(named.model.model_id.as_deref(), Some("m"));
    }

    #[test]
    fn rust_log_counts_where_no_level_is_given() {
        let level = |flags: &[&str], rust_log| {
            parse(flags, &[("RUST_LOG", rust_log)])
                .expect("valid")
                .router
                .log
                .log_level
                .map(|level| level.to_string())
        };
        assert_eq!(level(&[], "debug").as_deref(), Some("debug"));
        assert_eq!(level(&["--log-level=WARN"], "debug").as_deref(), Some("warn"));
        assert_eq!(level(&[], "a[b]").as_deref(), Some("info"));
    }
}
