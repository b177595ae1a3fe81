//! The start of a server of several models: check all command lines → listen → start the launchers of the models → serve.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use penstock_router::base::private_socket::PrivateSocket;
use penstock_router::http::auth::ApiKeys;
use penstock_router::proxy::budget::BudgetOptions;
use tokio::sync::mpsc;

use super::admin;
use super::command_lines::{Common, check_common, variables_of_server};
use super::devices::Gpus;
use super::error::FleetError;
use super::roster::Fleet;
use crate::args::Args;
use crate::console::Console;
use crate::hardware::Hardware;
use crate::parent_pipe::ParentPipe;
use crate::places::{find_in_own_folder, find_python, make_run_dir, with_keys_in_a_file};
use crate::plan::Plan;
use crate::ports::Ports;
use crate::report::Reporter;
use crate::runner::Runner;
use crate::signals::Signals;
use crate::start::{end_forking, fork_servers, processes_of};
use crate::supervisor::{Ending, Supervisor, Timeouts};
use crate::words;

/// Requests of operators that wait; more wait in their connections.
const MAX_WAITING: usize = 16;
/// The launcher of a model ends by itself, and says why, when its shards took too long.
const OWN_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves several models until it is told to end.
pub async fn launch(args: &Args, console: &Console) -> anyhow::Result<Ending> {
    let launched = Instant::now();
    let mut signals = Signals::new().context("cannot watch for signals")?;
    check_common(args)?;
    let (specs, most) = (&args.models.model, args.models.most() as usize);
    if specs.len() > most {
        return Err(FleetError::MoreThanMost { given: specs.len(), most }.into());
    }
    let ports = Ports::reserve(&args.router)?;
    let keys = ApiKeys::load(&args.router.api_key, args.router.api_key_file.as_deref())?;
    args.router.listen.tls_files().map(|files| files.acceptor()).transpose()?;
    let run_dir = make_run_dir()?;
    let parent_pipe = ParentPipe::new().context("cannot make a pipe")?;
    // The models have one together.
    let at = (run_dir.path(), find_python()?);
    let fork_servers =
        fork_servers(args, (at.0, &at.1), &parent_pipe, variables_of_server().collect(), console)?;
    let common = Common {
        words: words::given().map_err(FleetError::from)?,
        launcher: find_in_own_folder("launcher")?,
        router: find_in_own_folder("penstock-router")?,
        run_dir: run_dir.path().to_owned(),
        keys: with_keys_in_a_file(args, &keys, run_dir.path())?.router.api_key_file,
        parent_pipe_fd: parent_pipe.fd(),
        fork_server: fork_servers.as_ref().and_then(|servers| servers.path()).map(Path::to_owned),
        machine_share: args.models.most_awake(),
        budget: Some(args.models.budget.clone()).filter(BudgetOptions::is_given),
    };
    let hardware = Hardware::detect();
    let gpus = Gpus::new(hardware.num_gpus, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())
        .shared(common.budget.is_some());
    let proxy = common.proxy(args);
    let (sender, requests) = mpsc::channel(MAX_WAITING);
    let mut fleet = Fleet::new(common, hardware, gpus, most, requests);
    let mut groups = Vec::new();
    for spec in specs {
        groups.push(vec![fleet.add(spec.clone())?.1]);
    }
    let order = fleet.order_of_start();
    groups.resize(most, Vec::new());
    let admin = listen_for_operators(args, sender)?;

    let plan = Plan::of_models(groups, proxy, run_dir.path().to_owned());
    let timeouts =
        Timeouts { startup: args.process.startup_timeout() + OWN_TIMEOUT, grace: args.process.grace() };
    let spare = most - specs.len();
    let (supervisor, first) =
        Supervisor::start_models((order, spare), timeouts, args.process.restart_limit());
    let names: Vec<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
    console.say(&format!("Penstock {}: loading {}", env!("CARGO_PKG_VERSION"), names.join(", ")));
    let reporter = Reporter::new(console.clone(), names.join(", "), args.router.listen.scheme(), launched);
    let (processes, events) = processes_of(plan, args, fork_servers.clone(), console);
    let runner = Runner::new(processes, events, None, ports, reporter).with_models(fleet);
    let ending = runner.run(supervisor, first, &mut signals).await;
    end_forking(fork_servers).await;
    admin.abort();
    Ok(ending)
}

/// Opens the admin socket, if there is to be one. Its file goes when the returned task is aborted.
fn listen_for_operators(
    args: &Args,
    requests: mpsc::Sender<super::Request>,
) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let grace = args.process.grace();
    let Some(path) = &args.router.replicas.admin_socket else {
        return Ok(tokio::spawn(async {}));
    };
    let socket = PrivateSocket::bind(path);
    let socket = socket.with_context(|| format!("cannot listen on --admin-socket {}", path.display()))?;
    Ok(tokio::spawn(admin::serve(socket, requests, grace)))
}
