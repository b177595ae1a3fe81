//! Time that the router adds to a request: the real `penstock-router` over a shard without a model, seen by clients.
//! `PENSTOCK_ROUTER=…/penstock-router cargo bench -p penstock-router --bench router [-- --json]`
//!
//! - request to first event, with 64 streams and with chats of 1,000 tokens, at steady rates and as fast as it goes
//! - time added to each token of 2,000 streams at 10 tokens a second, and their processor time and memory
//! - time of the measurement itself, against a server that sends a constant response
#![allow(missing_docs, clippy::print_stdout, reason = "a program that prints a report")]

mod client;
mod fake_shard;
mod scenarios;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixListener;
use tokio::process::{Child, Command};

use fake_shard::{Answered, Device};
use scenarios::{Figures, Load};

/// Length of a step that gives each stream 10 tokens a second.
const PACE: Duration = Duration::from_millis(100);

/// Linux counts processor time in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// A router over a fake shard; killed when dropped.
pub struct Served {
    pub address: SocketAddr,
    pub answered: Answered,
    router: Child,
    _folder: tempfile::TempDir,
}

impl Served {
    async fn start(pace: Duration) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("shard.sock");
        let answered = fake_shard::serve(UnixListener::bind(&socket)?, Device::steady(pace));
        let mut router = router_command(&socket).spawn()?;
        let stdout = router.stdout.take().ok_or_else(|| io::Error::other("no stdout"))?;
        let line = BufReader::new(stdout).lines().next_line().await?.unwrap_or_default();
        let address = line.strip_prefix("listening on ").and_then(|text| text.parse().ok());
        let address = address.ok_or_else(|| io::Error::other(format!("no address in {line:?}")))?;
        Ok(Self { address, answered, router, _folder: folder })
    }

    /// Processor time of the router so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let fields = self.proc("stat");
        // utime and stime are the 14th and 15th fields; the 2nd is a name in brackets.
        let after_name = fields.rsplit(')').next().unwrap_or_default();
        let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<f64>().ok());
        ticks.sum::<f64>() / TICKS_PER_SECOND
    }

    /// Peak memory of the router.
    pub fn peak_mib(&self) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
    }

    fn proc(&self, file: &str) -> String {
        let pid = self.router.id().unwrap_or_default();
        fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
    }
}

pub fn model_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/penstock_server/demo_model")
}

fn router_command(socket: &Path) -> Command {
    let program = std::env::var_os("PENSTOCK_ROUTER").unwrap_or_else(|| "penstock-router".into());
    let mut command = Command::new(program);
    command.args(["--model-id=demo", "--port=0", "--max-concurrent-requests=4096"]);
    command.arg("--model-path").arg(model_path()).arg("--shard-sockets").arg(socket);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    command
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let json = std::env::args().any(|argument| argument == "--json");
    let show = |figures: &Figures| println!("{}", if json { figures.json() } else { figures.line() });
    show(&scenarios::measuring_alone(&Load::short("measuring alone", Some(200.0))).await?);
    for load in [
        Load::short("64 streams, 200 requests/s", Some(200.0)),
        Load::short("64 streams, back to back", None),
        Load::chat("chat of 1,000 tokens, 200 requests/s", 200.0)?,
        Load::chat("chat of 1,000 tokens, 1,000 requests/s", 1000.0)?,
    ] {
        show(&scenarios::first_event(&Served::start(Duration::ZERO).await?, &load).await?);
    }
    show(&scenarios::many_streams(&Served::start(PACE).await?, 2000).await?);
    Ok(())
}
