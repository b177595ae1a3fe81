//! The launcher: parse → resolve the model → plan → supervise → exit code. `launch` shows the order of a start.

mod args;
mod argv;
mod child;
mod console;
mod environment;
mod flags_page;
mod fleet;
mod forking;
mod hardware;
mod last_error;
mod layout;
mod nodes;
mod parent_pipe;
mod places;
mod plan;
mod ports;
mod preflight;
mod process;
mod processes;
mod ray_driver;
mod report;
mod resolve;
mod runner;
mod signals;
mod start;
mod supervisor;
mod tgi;
mod watch;
mod words;

use std::io::Write;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use penstock_router::base::launcher_tie;
use penstock_router::engine::mutual_tls::MutualTlsError;
use penstock_router::http::auth::{ApiKeyError, ApiKeys};
use penstock_router::http::server::tls::TlsError;

use crate::args::{Args, CheckArgs, DownloadArgs, LoadFormat, Task};
use crate::console::Console;
use crate::fleet::FleetError;
use crate::forking::ForkServers;
use crate::hardware::Hardware;
use crate::nodes::{Hub, ListenError, Member, NodeSettings, NodesError};
use crate::parent_pipe::ParentPipe;
use crate::places::{find_in_own_folder, find_python, make_run_dir, with_keys_in_a_file};
use crate::plan::{Addresses, DEMO_MODEL, Places, Plan, PlanError, contradiction, shards_here};
use crate::ports::{PortTaken, Ports};
use crate::preflight::{CheckFailed, check_files};
use crate::report::Reporter;
use crate::resolve::{ModelSource, ResolveFailed, resolve};
use crate::runner::Runner;
use crate::signals::{Signals, StopSignals};
use crate::start::{end_forking, fork_servers, processes_of};
use crate::supervisor::{Ending, Supervisor, Timeouts, WRONG_USAGE};
use crate::tgi::NotSupported;

// One thread: a parent-death signal is sent when the thread that forked ends, and the main thread ends last.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = match Args::from_command_line() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    if args.process.markdown_help {
        return print(&flags_page::render());
    }
    if args.process.openapi {
        return print(&penstock_router::api::openapi::document_text());
    }
    if let Some(Task::CheckTgiArgs(check_args)) = &args.task {
        return check_tgi_args(check_args);
    }
    let console = Console::start(args.router.log.json_output, args.launcher_log_level());
    let ending = match &args.task {
        Some(Task::Download(download_args)) => download(download_args, &console).await,
        _ if args.models.are_several() && !args.process.print_environment => {
            fleet::launch(&args, &console).await
        }
        _ if args.executor.is_ray() && !args.process.print_environment => {
            Err(ray_driver::become_driver(&args))
        }
        _ => launch(&args, &console).await,
    };
    let code = exit_code(ending, &console);
    console.flush();
    code
}

fn check_tgi_args(args: &CheckArgs) -> ExitCode {
    // TGI reads no variable whose name or value is not UTF-8.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let report = tgi::check(&args.line, &variables.collect());
    let text = if args.json { report.to_json() } else { report.to_string() };
    let printed = print(&text);
    if report.is_accepted { printed } else { ExitCode::from(2) }
}

/// Downloads a model ahead of time. Progress goes to stderr; stdout gets only the folder.
async fn download(args: &DownloadArgs, console: &Console) -> anyhow::Result<Ending> {
    let mut signals = StopSignals::new().context("cannot watch for signals")?;
    let (python, parent_pipe) = (find_python()?, ParentPipe::new().context("cannot make a pipe")?);
    let source = ModelSource {
        model: Some(&args.model_id),
        tokenizer: None,
        draft: None,
        heads: None,
        adapters: &[],
        hub: &args.hub,
        load_format: LoadFormat::Safetensors,
    };
    tokio::select! {
        found = resolve(&python, &source, &parent_pipe, console) => {
            writeln!(std::io::stdout(), "{}", found?.folder.display()).context("cannot print the folder")?;
            Ok(Ending::Stopped)
        }
        () = signals.recv() => Ok(Ending::Failed),
    }
}

async fn launch(args: &Args, console: &Console) -> anyhow::Result<Ending> {
    let launched = Instant::now();
    if let Some(fd) = args.process.parent_pipe_fd {
        std::thread::spawn(move || launcher_tie::end_with_launcher(fd, None));
    }
    let mut signals = Signals::new().context("cannot watch for signals")?;
    let (python, router) = (find_python()?, find_in_own_folder("penstock-router")?);
    let hardware = Hardware::detect();
    if args.process.print_environment {
        environment::print(&python, &hardware).await?;
        return Ok(Ending::Stopped);
    }
    for warning in args.tgi.warnings()? {
        console.warn(&warning);
    }
    let is_member = args.nodes.node_rank > 0;
    let ports = if is_member { Ports::none() } else { Ports::reserve(&args.router)? };
    if let Some(error) = contradiction(args) {
        return Err(error.into());
    }
    let nodes = NodeSettings::new(args, shards_here(args, &hardware)?)?;
    let keys = ApiKeys::load(&args.router.api_key, args.router.api_key_file.as_deref())?;
    // Wrong TLS files are reported before the model is loaded, not after.
    args.router.listen.tls_files().map(|files| files.acceptor()).transpose()?;
    args.router.replicas.tls()?;
    let name = args.model.model_id.clone().unwrap_or_else(|| DEMO_MODEL.to_owned());
    let mut reporter = Reporter::new(console.clone(), name, args.router.listen.scheme(), launched);
    if args.process.supervised {
        reporter = reporter.for_launcher();
    }

    let parent_pipe = ParentPipe::new().context("cannot make a pipe")?;
    let source = source_of(args);
    let model = tokio::select! {
        found = resolve(&python, &source, &parent_pipe, console) => found?,
        () = signals.stop.recv() => return Ok(Ending::Stopped),
    };
    reporter.stage(&format!(
        "Penstock {}: model is in {}",
        env!("CARGO_PKG_VERSION"),
        model.folder.display()
    ));

    let run_dir = make_run_dir()?;
    let run_path = run_dir.path().to_owned();
    let fork_servers = fork_servers(args, (run_dir.path(), &python), &parent_pipe, Vec::new(), console)?;
    let places = Places { python, router, run_dir: run_path, model, parent_pipe_fd: parent_pipe.fd() };
    let args = &with_keys_in_a_file(args, &keys, run_dir.path())?;
    let plan = Plan::new(args, &hardware, &places)?;
    console.say(&format!("Loading the model on {}", plan.devices));
    let forking = fork_servers.clone();
    let ending = run(Running { args, plan, nodes, ports, forking, console, reporter }, &mut signals).await;
    end_forking(fork_servers).await;
    ending
}

/// The parts that a launcher needs after it has found its model.
struct Running<'a> {
    args: &'a Args,
    plan: Plan,
    nodes: Option<NodeSettings>,
    ports: Ports,
    forking: Option<Arc<ForkServers>>,
    console: &'a Console,
    reporter: Reporter,
}

async fn run(running: Running<'_>, signals: &mut Signals) -> anyhow::Result<Ending> {
    let of_member = running.nodes.clone().filter(|nodes| !nodes.is_master());
    let Some(nodes) = of_member else { return serve(running, signals).await };
    let Running { args, plan, forking, console, .. } = running;
    let (processes, events) = processes_of(plan, args, forking, console);
    Ok(Member::new(nodes, processes, events, console.clone()).run(&mut signals.stop).await)
}

/// Runs the launcher that has the router.
async fn serve(running: Running<'_>, signals: &mut Signals) -> anyhow::Result<Ending> {
    let Running { args, plan, nodes, ports, forking, console, mut reporter } = running;
    tokio::select! {
        checked = check_files(&plan.router, console) => checked?,
        () = signals.stop.recv() => return Ok(Ending::Stopped),
    }
    reporter.set_replicas(plan.groups.len());
    let timeouts = Timeouts { startup: args.process.startup_timeout(), grace: args.process.grace() };
    let limit = args.process.restart_limit();
    let elsewhere = nodes.as_ref().map(NodeSettings::elsewhere).unwrap_or_default();
    let (supervisor, first) = Supervisor::start(plan.size(), &elsewhere, timeouts, limit);
    let addresses = Addresses::new(&plan.run_dir);
    let (processes, events) = processes_of(plan, args, forking, console);
    let hub = match nodes {
        Some(nodes) => Some(Hub::listen(nodes, console.clone(), processes.events(), addresses).await?),
        None => None,
    };
    let runner = Runner::new(processes, events, hub, ports, reporter);
    Ok(runner.run(supervisor, first, signals).await)
}

fn source_of(args: &Args) -> ModelSource<'_> {
    ModelSource {
        model: args.model.model_id.as_deref(),
        tokenizer: args.model.tokenizer.tokenizer.as_deref(),
        draft: args.draft_model(),
        heads: args.heads(),
        adapters: &args.router.adapters.lora_adapters,
        hub: &args.model.hub,
        load_format: args.model.load_format,
    }
}

fn exit_code(result: anyhow::Result<Ending>, console: &Console) -> ExitCode {
    match result {
        Ok(Ending::Stopped) => ExitCode::SUCCESS,
        Ok(Ending::Failed) => ExitCode::FAILURE,
        Ok(Ending::WrongUsage) => ExitCode::from(2),
        Ok(Ending::Aborted) => ExitCode::from(3),
        Ok(Ending::GaveUp) => ExitCode::from(4),
        // The failed step has reported the reason itself.
        Err(error) if error.is::<ResolveFailed>() || error.is::<CheckFailed>() => {
            ExitCode::from(if is_wrong_usage(&error) { 2 } else { 1 })
        }
        Err(error) => {
            console.error(&format!("{error:#}"));
            let wrong_usage = is_wrong_usage(&error);
            ExitCode::from(if wrong_usage { 2 } else { 1 })
        }
    }
}

fn is_wrong_usage(error: &anyhow::Error) -> bool {
    let said = |status: &ExitStatus| status.code() == Some(WRONG_USAGE);
    error.downcast_ref::<ResolveFailed>().is_some_and(|ResolveFailed(status)| said(status))
        || error.downcast_ref::<CheckFailed>().is_some_and(|CheckFailed(status)| said(status))
        || error.is::<PlanError>()
        || error.is::<PortTaken>()
        || error.is::<ApiKeyError>()
        || error.is::<TlsError>()
        || error.is::<MutualTlsError>()
        || error.is::<NotSupported>()
        || error.is::<NodesError>()
        || error.is::<ListenError>()
        || error.is::<FleetError>()
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
