//! The router as a process: arguments → logging → listener → [`penstock_router::serve`]. The launcher starts it; it can
//! also be started by hand if shards are running. With `--upstream` it is a proxy over whole servers instead ([`proxy`]).
//!
//! Exit codes: 0 stopped as asked; 1 failed; 2 what a flag asks for cannot be had, or the port is taken.

mod proxy;

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use penstock_router::Listeners;
use penstock_router::base::launcher_line::Line;
use penstock_router::base::launcher_tie::end_with_launcher;
use penstock_router::base::listen_address::ListenAddress;
use penstock_router::base::private_socket::PrivateSocket;
use penstock_router::base::shutdown::Shutdown;
use penstock_router::block_events;
use penstock_router::config::RouterConfig;
use penstock_router::http::server::listener::Listener;
use penstock_router::http::server::options::ListenOptions;
use penstock_router::observe::log_level::LogLevel;
use penstock_router::observe::log_options::LogOptions;
use tokio::net::{TcpListener, UnixListener};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serve shards that are running over HTTP
#[derive(Debug, Parser)]
#[command(name = "penstock-router", version)]
#[command(
    after_help = "A proxy over whole servers: `penstock-router --upstream URL`, with the flags that `--upstream URL --help` lists"
)]
struct Args {
    #[command(flatten)]
    config: RouterConfig,

    /// How the process is run
    #[command(flatten)]
    process: ProcessArgs,

    /// Check the tokenizer, the chat template and the files that flags name, and exit
    #[arg(long, hide = true)]
    check: bool,
}

/// How the process is run, as a router or as a proxy.
#[derive(Debug, clap::Args)]
struct ProcessArgs {
    /// Seconds that running requests may take to finish after SIGTERM or Ctrl-C
    #[arg(long, short, default_value_t = 90)]
    graceful_termination_timeout: u64,

    /// Inherited pipe that closes when the launcher is gone
    #[arg(long, hide = true)]
    parent_pipe_fd: Option<i32>,

    /// Serve on the listening socket that is this process' stdin, instead of opening one
    #[arg(long, hide = true)]
    listen_stdin: bool,

    /// Folder to remove when the launcher is gone
    #[arg(long, hide = true)]
    run_dir: Option<PathBuf>,
}

impl ProcessArgs {
    /// Has the process end with its launcher, if it has one.
    fn follow_launcher(&self) {
        if let Some(fd) = self.parent_pipe_fd {
            let run_dir = self.run_dir.clone();
            std::thread::spawn(move || end_with_launcher(fd, run_dir.as_deref()));
        }
    }

    /// The shutdown by signals.
    fn shutdown(&self) -> anyhow::Result<Shutdown> {
        let grace = Duration::from_secs(self.graceful_termination_timeout);
        Shutdown::on_signals(grace).context("cannot watch for signals")
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    if proxy::is_asked_for(std::env::args_os()) {
        return proxy::run().await;
    }
    let args = Args::parse();
    args.process.follow_launcher();
    if args.check {
        return match penstock_router::check(&args.config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail_by_rule(&error.into()),
        };
    }
    start_logging(&args.config.options.log);
    raise_file_limit();
    let listeners = match listen(&args).await {
        Ok(listeners) => listeners,
        Err(error) => return fail(&error, 2),
    };
    match serve(args, listeners).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail_by_rule(&error),
    }
}

async fn serve(args: Args, listeners: Listeners) -> anyhow::Result<()> {
    let shutdown = args.process.shutdown()?;
    penstock_router::serve(args.config, listeners, shutdown).await?;
    Ok(())
}

/// Opens the listeners.
async fn listen(args: &Args) -> anyhow::Result<Listeners> {
    let options = &args.config.options;
    let listen = &options.listen;
    let http = listen_for_http(listen, args.process.listen_stdin).await?;
    let grpc = match options.grpc_port {
        Some(port) => Some(bind(&listen.hostname, port).await?),
        None => None,
    };
    let admin = options.replicas.admin_socket.as_deref();
    let bind = |path: &Path| {
        let socket = PrivateSocket::bind(path);
        socket.with_context(|| format!("cannot listen on --admin-socket {}", path.display()))
    };
    let admin = admin.map(bind).transpose()?;
    options.block_events.check()?;
    let block_events = block_events::listener::Listeners::bind(&options.block_events).await?;
    Ok(Listeners { http, grpc, admin, block_events })
}

/// Opens the listener for HTTP, or takes the one on stdin. Prints where it is to stdout for the launcher, which cannot know
/// it if the port is 0.
async fn listen_for_http(options: &ListenOptions, is_inherited: bool) -> anyhow::Result<Listener> {
    let listener = match &options.uds {
        _ if is_inherited => inherited(options)?,
        Some(path) => {
            let socket = PrivateSocket::bind(path);
            socket.with_context(|| format!("cannot listen on --uds {}", path.display()))?.into()
        }
        None => bind(&options.hostname, options.port).await?.into(),
    };
    let address = match &listener {
        Listener::Tcp(listener) => ListenAddress::Tcp(listener.local_addr()?),
        Listener::Unix(..) => ListenAddress::Unix(options.uds.clone().unwrap_or_default()),
    };
    Line::Listening(address).write();
    Ok(listener)
}

/// The listening socket on stdin. The launcher holds it too, so it stays open after this router has ended.
fn inherited(options: &ListenOptions) -> anyhow::Result<Listener> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("stdin is no socket")?;
    if options.uds.is_some() {
        let listener = std::os::unix::net::UnixListener::from(socket);
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener).context("stdin is no listening socket")?;
        return Ok(Listener::Unix(listener, None));
    }
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(TcpListener::from_std(listener).context("stdin is no listening socket")?.into())
}

async fn bind(hostname: &str, port: u16) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind((hostname, port)).await;
    listener.with_context(|| format!("cannot listen on {hostname}:{port}"))
}

/// Raises the limit of open files to the most allowed: each connection is a file, and many systems default to 1024.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

fn start_logging(options: &LogOptions) {
    let rust_log = std::env::var("RUST_LOG").ok();
    let level = LogLevel::choose(options.log_level.clone(), rust_log.as_deref());
    let targets = Targets::new().with_default(level.general()).with_targets(level.parts().iter().cloned());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = if options.json_output { lines.json().flatten_event(true).boxed() } else { lines.boxed() };
    tracing_subscriber::registry().with(lines.with_filter(targets)).init();
}

/// Fails with the exit code that shards use: 2 if a flag asks for the impossible; its error begins with the flag.
fn fail_by_rule(error: &anyhow::Error) -> ExitCode {
    fail(error, if error.to_string().starts_with("--") { 2 } else { 1 })
}

fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
    ExitCode::from(code)
}
