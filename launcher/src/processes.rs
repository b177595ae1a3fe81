//! The child processes of a plan by their id: started with what differs between starts, signalled, forgotten when they
//! have ended.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::console::Console;
use crate::forking::ForkServers;
use crate::plan::{EachStart, Plan, ProcessSpec, StartOptions};
use crate::process::{self, Process, Starting};
use crate::supervisor::{Event, Exit, Part, ProcessId};

/// The processes that run.
pub struct Processes {
    plan: Plan,
    /// How long one step of a shard may take.
    step_timeout: Duration,
    /// The servers that fork shards; `None` if they are started plainly.
    fork_servers: Option<Arc<ForkServers>>,
    console: Console,
    events: mpsc::UnboundedSender<Event>,
    running: BTreeMap<ProcessId, Process>,
}

impl Processes {
    /// None yet. Their events go to `events`.
    pub fn new(
        plan: Plan,
        step_timeout: Duration,
        fork_servers: Option<Arc<ForkServers>>,
        console: Console,
        events: mpsc::UnboundedSender<Event>,
    ) -> Self {
        Self { plan, step_timeout, fork_servers, console, events, running: BTreeMap::new() }
    }

    /// Where their events go.
    pub fn events(&self) -> mpsc::UnboundedSender<Event> {
        self.events.clone()
    }

    /// One that runs.
    pub fn get(&self, id: ProcessId) -> Option<&Process> {
        self.running.get(&id)
    }

    /// All that run.
    pub fn all(&self) -> impl Iterator<Item = &Process> {
        self.running.values()
    }

    /// Whether none runs.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Sets the process that is the model in this place from now on.
    pub fn set_model(&mut self, place: usize, process: ProcessSpec) {
        self.plan.groups[place] = vec![process];
    }

    /// Starts a shard, with these flags, too. If that fails, it has ended.
    pub fn start_shard(&mut self, id: ProcessId, options: StartOptions, more: Vec<String>) {
        let mut spec = self.plan.spec(id, options);
        spec.args.extend(more);
        let folder = self.plan.rendezvous_dir(id, options);
        let made = if spec.each_start == EachStart::Group { make(&folder) } else { Ok(()) };
        let started = made.and_then(|()| self.start(id, &spec, Stdio::null()));
        self.report(id, &spec, started);
    }

    /// Starts the router on its listening socket. If that fails, it has ended.
    pub fn start_router(&mut self, options: StartOptions, listener: std::io::Result<Stdio>) {
        let spec = self.plan.spec(ProcessId::Router, options);
        let started = listener.and_then(|listener| self.start(ProcessId::Router, &spec, listener));
        self.report(ProcessId::Router, &spec, started);
    }

    /// Whether the exit of one of this group is under way.
    pub fn is_any_ending(&self, group: usize) -> bool {
        let mut all = self.running.iter();
        all.any(|(id, process)| id.part() == Part::Group(group) && process.is_ending())
    }

    /// Does this to a process, if it runs.
    pub fn each(&self, id: ProcessId, act: impl Fn(&Process)) {
        self.get(id).into_iter().for_each(act);
    }

    /// Forgets a process that ended: dropping it kills what it started.
    pub fn remove(&mut self, id: ProcessId) -> Option<Process> {
        self.running.remove(&id)
    }

    fn start(&mut self, id: ProcessId, spec: &ProcessSpec, stdin: Stdio) -> std::io::Result<()> {
        let (step_timeout, console, events) = (self.step_timeout, &self.console, &self.events);
        // The processes of a launcher of several models are launchers.
        let is_shard = spec.each_start == EachStart::Group;
        let fork_servers = self.fork_servers.clone().filter(|_| is_shard);
        let process =
            process::start(Starting { id, spec, stdin, fork_servers, step_timeout, console, events })?;
        self.running.insert(id, process);
        Ok(())
    }

    fn report(&self, id: ProcessId, spec: &ProcessSpec, started: std::io::Result<()>) {
        if let Err(error) = started {
            let status = format!("{} cannot be started: {error}", spec.program.display());
            let _ = self.events.send(Event::Exited(id, Exit { code: None, status, last_error: Vec::new() }));
        }
    }
}

fn make(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)
}
