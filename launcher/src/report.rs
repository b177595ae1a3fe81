//! Turns the supervisor's reports into lines for operators, with the time that each stage took.

use std::time::{Duration, Instant};

use penstock_router::base::launcher_line::{ALIVE_EVERY, Line};
use penstock_router::base::listen_address::ListenAddress;

use crate::console::Console;
use crate::fleet::Fleet;
use crate::layout::shard_name;
use crate::supervisor::{Consequence, Exit, Part, ProcessId, Report};
use crate::watch::reachable;

/// Prints reports, and measures the stages between them.
pub struct Reporter {
    console: Console,
    model: String,
    scheme: &'static str,
    /// Replicas of the model; they are named where there are several.
    num_replicas: usize,
    launched: Instant,
    stage: Instant,
    /// Whether a launcher of several models is told on stdout when the server serves.
    has_launcher: bool,
}

impl Reporter {
    /// The first stage starts at `launched`, the start of the launcher. `scheme` is "http" or "https".
    pub fn new(console: Console, model: String, scheme: &'static str, launched: Instant) -> Self {
        Self { console, model, scheme, num_replicas: 1, launched, stage: launched, has_launcher: false }
    }

    /// A launcher of several models is told on stdout when the server serves, and that it is alive from then on.
    pub fn for_launcher(self) -> Self {
        Self { has_launcher: true, ..self }
    }

    /// Sets the number of replicas, once it is known.
    pub fn set_replicas(&mut self, num_replicas: usize) {
        self.num_replicas = num_replicas;
    }

    fn name(&self, id: ProcessId, fleet: Option<&Fleet>) -> String {
        match (id, fleet) {
            (ProcessId::Shard { group, .. }, Some(fleet)) => {
                format!("the server of model {}", model(fleet, group))
            }
            (ProcessId::Shard { group, rank }, None) => shard_name(self.num_replicas, group, rank),
            (ProcessId::Router, Some(_)) => "the proxy".to_owned(),
            (ProcessId::Router, None) => "the router".to_owned(),
        }
    }

    fn names(&self, ids: &[ProcessId], fleet: Option<&Fleet>) -> String {
        let names: Vec<_> = ids.iter().map(|id| self.name(*id, fleet)).collect();
        names.join(", ")
    }

    fn part_name(&self, part: Part, fleet: Option<&Fleet>) -> String {
        match (part, fleet) {
            (Part::Group(group), Some(fleet)) => format!("Model {}", model(fleet, group)),
            (Part::Group(_), None) if self.num_replicas == 1 => "The group of shards".to_owned(),
            (Part::Group(group), None) => format!("Replica {group}"),
            (Part::Router, Some(_)) => "The proxy".to_owned(),
            (Part::Router, None) => "The router".to_owned(),
        }
    }

    fn shards_of(&self, group: usize, fleet: Option<&Fleet>) -> String {
        match fleet {
            Some(fleet) => format!("model {}", model(fleet, group)),
            None if self.num_replicas == 1 => "the shards".to_owned(),
            None => format!("the shards of replica {group}"),
        }
    }

    fn loaded(&self, group: usize, fleet: Option<&Fleet>) -> String {
        match fleet {
            Some(fleet) => format!("Model {} is loaded", model(fleet, group)),
            None if self.num_replicas == 1 => "Shards are ready: model loaded and warmed up".to_owned(),
            None => format!("Shards of replica {group} are ready: model loaded and warmed up"),
        }
    }

    fn awaiting(&self, group: usize) -> String {
        match self.num_replicas {
            1 => "Waiting until all nodes are there (--nnodes)".to_owned(),
            _ => format!("Waiting until all nodes of replica {group} are there (--nnodes)"),
        }
    }

    /// Prints the end of a stage and its duration, and starts the next stage.
    pub fn stage(&mut self, text: &str) {
        let seconds = self.stage.elapsed().as_secs_f32();
        self.stage = Instant::now();
        self.console.say(&format!("{text} ({seconds:.1} s)"));
    }

    /// Prints one report. `address` is the address of the router's HTTP listener, once it is known; `fleet` has the models,
    /// where there are several.
    pub fn report(&mut self, report: &Report, address: Option<ListenAddress>, fleet: Option<&Fleet>) {
        match report {
            Report::Loaded(group) => self.stage(&self.loaded(*group, fleet)),
            Report::Serving => self.serving(address),
            Report::Draining(grace) => self.console.say(&format!(
                "Stopping: running requests may finish, for {} s at most (again to stop at once)",
                grace.as_secs()
            )),
            Report::Recovered(part) => {
                self.stage(&format!("{} is ready again", self.part_name(*part, fleet)))
            }
            Report::Died(id, exit, consequence) => {
                self.fail(&died(&self.name(*id, fleet), exit, *consequence))
            }
            Report::Hung(id, reason, consequence) => {
                self.fail(&format!("{} hangs ({reason}), {}", self.name(*id, fleet), follows(*consequence)))
            }
            Report::ShardsFailed(group, reason) => {
                self.fail(&format!("{reason}; restarting {}", self.shards_of(*group, fleet)));
            }
            Report::Removed(group) => {
                let shards = self.shards_of(*group, fleet);
                self.console.say(&format!("Ended {shards}, which was removed"));
            }
            Report::AwaitingNodes(group) => self.console.say(&self.awaiting(*group)),
            Report::NodesMissing => self.fail(
                "not all nodes of --nnodes joined in time; --startup-timeout allows more; so everything stops",
            ),
            Report::NotReady(ids, consequence) => {
                self.fail(&not_ready(&self.names(ids, fleet), *consequence))
            }
            Report::TooManyRestarts(part, count, window) => {
                self.fail(&too_many(&self.part_name(*part, fleet), *count, *window));
            }
            Report::LeftDown(part, count, window) => {
                self.fail(&left_down(&self.part_name(*part, fleet), *count, *window));
            }
            Report::Unkillable(ids) => {
                self.fail(&format!("{} did not end when killed", self.names(ids, fleet)))
            }
            Report::AbortingRequests => self.console.say("Stopping at once: running requests are aborted"),
        }
    }

    /// Prints an error and starts a stage.
    fn fail(&mut self, text: &str) {
        self.stage = Instant::now();
        self.console.error(text);
    }

    fn serving(&mut self, address: Option<ListenAddress>) {
        let Some(address) = address else { return };
        self.stage("Router is ready");
        if self.has_launcher {
            Line::Listening(address).write();
            tokio::spawn(tell_of_life());
            return;
        }
        let at = Reached::new(&address, self.scheme);
        self.console.say(&serving(&self.model, &at, self.launched.elapsed().as_secs_f32()));
    }
}

/// Says that this process is alive, for as long as its loop turns.
async fn tell_of_life() {
    loop {
        Line::Alive.write();
        tokio::time::sleep(ALIVE_EVERY).await;
    }
}

/// The name of the model in this place.
fn model(fleet: &Fleet, place: usize) -> &str {
    fleet.name(place).unwrap_or("that is gone")
}

/// How clients reach the server, as text for operators.
struct Reached {
    /// The address of the server.
    place: String,
    /// The arguments of `curl` that name the server.
    curl: String,
}

impl Reached {
    fn new(address: &ListenAddress, scheme: &str) -> Self {
        match address {
            ListenAddress::Tcp(address) => {
                let url = format!("{scheme}://{}", reachable(*address));
                let everywhere = if reachable(*address) == *address { "" } else { ", on every interface" };
                Self { place: format!("{url}{everywhere}"), curl: url }
            }
            ListenAddress::Unix(path) => {
                let curl = format!("--unix-socket {} {scheme}://localhost", path.display());
                Self { place: address.to_string(), curl }
            }
        }
    }
}

fn serving(model: &str, Reached { place, curl }: &Reached, seconds: f32) -> String {
    format!(
        "\nServing {model} on {place}, {seconds:.1} s after the start. Try:\n\n  \
         curl {curl}/generate -H 'Content-Type: application/json' \\\n    \
         -d '{{\"inputs\": \"What is 12 + 30?\", \"parameters\": {{\"max_new_tokens\": 40}}}}'\n\n\
         Ctrl-C to stop.\n"
    )
}

fn follows(consequence: Consequence) -> &'static str {
    match consequence {
        Consequence::End => "so everything stops",
        Consequence::Restart => "restarting",
        Consequence::Drop => "so the model is not loaded",
    }
}

fn died(name: &str, exit: &Exit, consequence: Consequence) -> String {
    let ended = format!("{name} ended ({}), {}", exit.status, follows(consequence));
    match &exit.last_error[..] {
        [] => format!("{ended}; it reported no error"),
        lines => format!("{ended}. Its last error:\n  {}", lines.join("\n  ")),
    }
}

fn not_ready(names: &str, consequence: Consequence) -> String {
    let follows = follows(consequence);
    format!("{names} did not get ready in time; --startup-timeout allows more; {follows}")
}

fn too_many(name: &str, count: u32, window: Duration) -> String {
    let window = window.as_secs();
    format!(
        "{name} failed more than {count} times within {window} s (--max-restarts, --restart-window), so everything stops"
    )
}

fn left_down(name: &str, count: u32, window: Duration) -> String {
    let window = window.as_secs();
    format!(
        "{name} stays down, and the others go on: it failed more than {count} times within {window} s (--max-restarts, --restart-window)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_named_where_there_are_several() {
        assert_eq!(
            (shard_name(1, 0, 3), shard_name(2, 1, 3)),
            ("shard 3".into(), "replica 1 shard 3".into())
        );
    }

    #[test]
    fn a_death_is_reported_with_the_whole_error() {
        let exit = Exit {
            code: None,
            status: "exit code 1".to_owned(),
            last_error: vec!["Traceback:".to_owned(), "ValueError: 3".to_owned()],
        };
        let text = died(&shard_name(1, 0, 1), &exit, Consequence::Restart);
        assert!(text.starts_with("shard 1 ended (exit code 1), restarting"));
        assert!(text.ends_with("  Traceback:\n  ValueError: 3"));
        let exit = Exit { last_error: Vec::new(), status: "signal 9, SIGKILL".to_owned(), ..exit };
        let text = died("the router", &exit, Consequence::Restart);
        assert_eq!(text, "the router ended (signal 9, SIGKILL), restarting; it reported no error");
    }
}
