//! The process as a proxy over whole servers: `penstock-router --upstream URL…`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser};
use penstock_router::http::server::listener::Listener;
use penstock_router::proxy;
use penstock_router::proxy::options::ProxyConfig;

use super::{Args, ProcessArgs, fail, listen_for_http, raise_file_limit, start_logging};

const UPSTREAM: &str = "--upstream";
/// The flag by which a launcher with several models names the upstreams.
const MODELS_FILE: &str = "--models-file";

/// Pass requests on to whole servers, which share nothing
#[derive(Debug, Parser)]
#[command(name = "penstock-router", version)]
struct ProxyArgs {
    #[command(flatten)]
    config: ProxyConfig,

    /// How the process is run
    #[command(flatten)]
    process: ProcessArgs,
}

/// Whether a command line asks for a proxy.
pub fn is_asked_for(mut line: impl Iterator<Item = OsString>) -> bool {
    line.any(|word| {
        let word = word.to_string_lossy();
        [UPSTREAM, MODELS_FILE].contains(&word.split('=').next().unwrap_or_default())
    })
}

/// Parses the command line and serves.
pub async fn run() -> ExitCode {
    let args = match parse(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    args.process.follow_launcher();
    start_logging(&args.config.log);
    raise_file_limit();
    if let Err(error) = args.config.check() {
        return fail(&error.into(), 2);
    }
    let listener = match listen_for_http(&args.config.listen, args.process.listen_stdin).await {
        Ok(listener) => listener,
        Err(error) => return fail(&error, 2),
    };
    match serve(args, listener).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, 1),
    }
}

async fn serve(args: ProxyArgs, listener: Listener) -> anyhow::Result<()> {
    let shutdown = args.process.shutdown()?;
    proxy::serve(args.config, listener, shutdown).await?;
    Ok(())
}

fn parse(line: impl Iterator<Item = OsString>) -> Result<ProxyArgs, clap::Error> {
    let matches = ProxyArgs::command().try_get_matches_from(line).map_err(explain)?;
    let mut args = ProxyArgs::from_arg_matches(&matches)?;
    args.config.listen.ignore_machine_name(&matches);
    Ok(args)
}

/// A flag that is unknown here may be one of a router over shards.
fn explain(error: clap::Error) -> clap::Error {
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if error.kind() == ErrorKind::UnknownArgument => flag.clone(),
        _ => return error,
    };
    let is_of_router = |name: &str| Args::command().get_arguments().any(|arg| arg.get_long() == Some(name));
    if !unknown.strip_prefix("--").is_some_and(is_of_router) {
        return error;
    }
    let reason = format!("{unknown} cannot be used with {UPSTREAM}: it is a flag of a router over shards");
    ProxyArgs::command().error(ErrorKind::ArgumentConflict, reason)
}
