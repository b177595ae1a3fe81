//! The few lines that tell people what is going on, and how long it took.

use std::net::SocketAddr;
use std::time::Instant;

use crate::console::Console;
use crate::process::reachable;
use crate::supervisor::{Exit, ProcessId, Report};

/// Turns reports into lines.
pub struct Reporter {
    console: Console,
    model: String,
    launched: Instant,
    stage: Instant,
}

impl Reporter {
    /// Begins with the time at which the launcher began.
    pub fn new(console: Console, model: String, launched: Instant) -> Self {
        Self { console, model, launched, stage: launched }
    }

    /// A stage that took until now, and what comes next.
    pub fn stage(&mut self, text: &str) {
        let seconds = self.stage.elapsed().as_secs_f32();
        self.stage = Instant::now();
        self.console.say(&format!("{text} ({seconds:.1} s)"));
    }

    /// One report of the supervisor; `address` is where the router listens, if it does.
    pub fn report(&mut self, report: Report, address: Option<SocketAddr>) {
        match report {
            Report::Loaded => self.stage("Shards are ready: model loaded and warmed up"),
            Report::Serving => self.serving(address),
            Report::Draining(grace) => self.console.say(&format!(
                "Stopping: running requests may finish, for {} s at most (again to stop at once)",
                grace.as_secs()
            )),
            Report::Died(id, exit) => self.console.error(&died(id, &exit)),
            Report::NotReady(ids) => self.console.error(&not_ready(&ids)),
            Report::CutShort => self.console.say("Stopping at once: running requests are cut short"),
        }
    }

    fn serving(&mut self, address: Option<SocketAddr>) {
        let Some(address) = address else { return };
        self.stage("Router is ready");
        let url = format!("http://{}", reachable(address));
        let everywhere = if reachable(address) == address { "" } else { ", on every interface" };
        self.console.say(&serving(&self.model, &url, everywhere, self.launched.elapsed().as_secs_f32()));
    }
}

fn serving(model: &str, url: &str, everywhere: &str, seconds: f32) -> String {
    format!(
        "\nServing {model} on {url}{everywhere}, {seconds:.1} s after the start. Try:\n\n  \
         curl {url}/generate -H 'Content-Type: application/json' \\\n    \
         -d '{{\"inputs\": \"What is 12 + 30?\", \"parameters\": {{\"max_new_tokens\": 40}}}}'\n\n\
         Ctrl-C to stop.\n"
    )
}

fn name(id: ProcessId) -> String {
    match id {
        ProcessId::Shard(rank) => format!("shard {rank}"),
        ProcessId::Router => "the router".to_owned(),
    }
}

fn died(id: ProcessId, exit: &Exit) -> String {
    let ended = format!("{} ended ({}), so everything stops", name(id), exit.status);
    match &exit.last_error[..] {
        [] => format!("{ended}; it left no message"),
        lines => format!("{ended}. Its last error:\n  {}", lines.join("\n  ")),
    }
}

fn not_ready(ids: &[ProcessId]) -> String {
    let names: Vec<_> = ids.iter().copied().map(name).collect();
    format!("{} did not get ready in time; --startup-timeout allows more", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_told_with_the_whole_error() {
        let exit = Exit {
            success: false,
            status: "exit code 1".to_owned(),
            last_error: vec!["Traceback:".to_owned(), "ValueError: 3".to_owned()],
        };
        let text = died(ProcessId::Shard(1), &exit);
        assert!(text.starts_with("shard 1 ended (exit code 1)"));
        assert!(text.ends_with("  Traceback:\n  ValueError: 3"));
    }
}
