//! The process as a proxy over whole servers: `penstock-router --upstream URL…`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser};
use penstock_router::base::shutdown::Shutdown;
use penstock_router::proxy;
use penstock_router::proxy::options::ProxyConfig;
use penstock_router::supervised::Line;

use super::{Args, bind, fail, raise_file_limit, start_logging};

const UPSTREAM: &str = "--upstream";

/// Pass requests on to whole servers, which share nothing
#[derive(Debug, Parser)]
#[command(name = "penstock-router", version)]
struct ProxyArgs {
    #[command(flatten)]
    config: ProxyConfig,

    /// Seconds that running requests may take to finish after SIGTERM or Ctrl-C
    #[arg(long, short, default_value_t = 90)]
    graceful_termination_timeout: u64,
}

/// Whether a command line asks for a proxy.
pub fn is_asked_for(mut line: impl Iterator<Item = OsString>) -> bool {
    line.any(|word| word == UPSTREAM || word.to_string_lossy().starts_with("--upstream="))
}

/// Parses the command line and serves.
pub async fn run() -> ExitCode {
    let args = match parse(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    start_logging(&args.config.log);
    raise_file_limit();
    if let Err(error) = args.config.check() {
        return fail(&error.into(), 2);
    }
    let listen = &args.config.listen;
    let listener = match bind(&listen.hostname, listen.port).await {
        Ok(listener) => listener,
        Err(error) => return fail(&error, 2),
    };
    match serve(args, listener).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, 1),
    }
}

async fn serve(args: ProxyArgs, listener: tokio::net::TcpListener) -> anyhow::Result<()> {
    let grace = Duration::from_secs(args.graceful_termination_timeout);
    let shutdown = Shutdown::on_signals(grace).context("cannot watch for signals")?;
    Line::Listening(listener.local_addr()?).write();
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
