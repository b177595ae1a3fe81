//! Decides who forks the shards of this launcher: the fork server that it was given; its own one, if shards of the
//! other would differ from those that this launcher starts; or none.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::connection::{NotForked, Outcome, Pipes, ask, files};
use super::messages::Request;
use super::own::{OwnServer, Settings};
use crate::args::ForkChoice;
use crate::console::Console;
use crate::parent_pipe::ParentPipe;
use crate::plan::ProcessSpec;

/// How often an own fork server is asked for one shard: it may end meanwhile.
const MAX_ATTEMPTS: u32 = 5;
/// How long its own fork server may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The fork servers that this launcher asks. Dropping this ends its own one.
pub struct ForkServers {
    given: Option<PathBuf>,
    own: Option<Arc<OwnServer>>,
    /// The task of its own fork server, once it runs.
    running: Mutex<Option<JoinHandle<()>>>,
    parent_pipe: OwnedFd,
    console: Console,
}

impl ForkServers {
    /// No fork server is asked if shards are to be started plainly. Its own one is started at once if none is given.
    pub fn new(
        choice: Option<&ForkChoice>,
        settings: Settings,
        parent_pipe: &ParentPipe,
        console: &Console,
    ) -> std::io::Result<Option<Arc<Self>>> {
        let given = match choice {
            Some(ForkChoice::Off) => return Ok(None),
            Some(ForkChoice::Given(path)) => Some(path.clone()),
            None => None,
        };
        let own = OwnServer::new(settings, console);
        if let Err(error) = &own {
            console.warn(&format!("There is no fork server: {error}"));
        }
        let servers = Self {
            given,
            own: own.ok().map(Arc::new),
            running: Mutex::default(),
            parent_pipe: parent_pipe.try_clone()?,
            console: console.clone(),
        };
        if servers.given.is_none() {
            servers.start_own();
        }
        Ok(Some(Arc::new(servers)))
    }

    /// The socket where other launchers find the fork server.
    pub fn path(&self) -> Option<&Path> {
        self.given.as_deref().or(self.own.as_ref().map(|own| own.path.as_path()))
    }

    /// Ends its own fork server, and waits until it has ended.
    pub async fn end(&self) {
        let running = self.running.lock().expect("no panic holds it").take();
        if let (Some(own), Some(running)) = (&self.own, running) {
            own.end();
            let _ = timeout(END_TIMEOUT, running).await;
        }
    }

    fn start_own(&self) {
        let mut running = self.running.lock().expect("no panic holds it");
        if let (None, Some(own)) = (&*running, &self.own) {
            let own = Arc::clone(own);
            *running = Some(tokio::spawn(async move { own.keep().await }));
        }
    }

    /// Has a shard forked that writes to these pipes. `None`: it is to be started plainly.
    pub async fn fork(&self, spec: &ProcessSpec, pipes: &Pipes) -> Option<Outcome> {
        let request = match Request::of(spec).and_then(|request| request.to_bytes()) {
            Ok(request) => request,
            Err(unsaid) => {
                self.console.warn(&format!("{} is started without a fork server: {unsaid}", spec.name));
                return None;
            }
        };
        let files = files(pipes, &self.parent_pipe);
        if let Some(path) = &self.given {
            match ask(path, &request, files).await {
                Ok(outcome) => return Some(outcome),
                Err(error) => {
                    let at = path.display();
                    self.console.say(&format!("{} is not forked through {at}: {error}", spec.name));
                }
            }
        }
        self.start_own();
        let own = self.own.as_ref()?;
        for _ in 0..MAX_ATTEMPTS {
            match ask(&own.path, &request, files).await {
                Ok(outcome) => {
                    own.on_forked();
                    return Some(outcome);
                }
                Err(NotForked::Lost(_)) if own.may_run() => {}
                Err(NotForked::Lost(_)) => return None,
                Err(error @ NotForked::Refused(_)) => {
                    self.console.say(&format!("{} is started without a fork server: {error}", spec.name));
                    return None;
                }
            }
        }
        None
    }
}

impl Drop for ForkServers {
    fn drop(&mut self) {
        self.running.lock().expect("no panic holds it").iter().for_each(JoinHandle::abort);
    }
}
