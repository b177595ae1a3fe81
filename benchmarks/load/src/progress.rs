//! Shows the progress of a run: a bar that is redrawn on a terminal, else a line at intervals.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::duration::millis;
use crate::live::{Live, Snapshot};

const REDRAW_EVERY: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(10);
const BAR_WIDTH: usize = 24;

/// The limits of a run, for the bar.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Goal {
    /// Requests in all, where a count ends the run.
    pub num_requests: Option<usize>,
    /// Time of sending, where a time ends it.
    pub span: Option<Duration>,
}

impl Goal {
    /// The part that is done, from 0 to 1, by the limit that is nearer.
    fn share(&self, now: &Snapshot) -> f64 {
        let by_count = self.num_requests.map_or(0.0, |total| now.num_ended as f64 / total.max(1) as f64);
        let by_time = self.span.map_or(0.0, |span| now.elapsed.as_secs_f64() / span.as_secs_f64().max(1e-9));
        by_count.max(by_time).min(1.0)
    }
}

/// Draws until it is dropped, and then removes what it drew.
pub struct Progress {
    task: Option<tokio::task::JoinHandle<()>>,
    is_terminal: bool,
}

impl Progress {
    /// Starts to show a run, unless progress is turned off.
    pub fn show(live: Arc<Live>, goal: Goal, is_quiet: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let task = (!is_quiet).then(|| tokio::spawn(draw(live, goal, is_terminal)));
        Self { task, is_terminal }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        task.abort();
        if self.is_terminal {
            write_out("\r\x1b[K");
        }
    }
}

/// Prints on a terminal what is being prepared; the bar replaces the line.
pub fn note(text: &str, is_quiet: bool) {
    if !is_quiet && std::io::stderr().is_terminal() {
        write_out(&format!("\r{text}\x1b[K"));
    }
}

async fn draw(live: Arc<Live>, goal: Goal, is_terminal: bool) {
    let mut before = Snapshot::default();
    loop {
        tokio::time::sleep(if is_terminal { REDRAW_EVERY } else { LINE_EVERY }).await;
        let now = live.snapshot();
        let line = line(&goal, &now, &before);
        write_out(&if is_terminal {
            format!("\r{} {line}\x1b[K", bar(goal.share(&now)))
        } else {
            format!("{line}\n")
        });
        before = now;
    }
}

fn write_out(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush()); // a closed terminal must not stop the run
}

fn bar(share: f64) -> String {
    let done = (share * BAR_WIDTH as f64).round() as usize;
    format!("{}{} {:3.0}%", "█".repeat(done), "░".repeat(BAR_WIDTH - done), share * 100.0)
}

fn line(goal: &Goal, now: &Snapshot, before: &Snapshot) -> String {
    let total = goal.num_requests.map_or_else(String::new, |total| format!("/{total}"));
    let interval = (now.elapsed - before.elapsed).as_secs_f64().max(1e-9);
    let pieces_per_s = (now.num_pieces - before.num_pieces) as f64 / interval;
    let ttft =
        now.first_token_p50.map_or_else(String::new, |time| format!(" · TTFT p50 {:.0} ms", millis(time)));
    let running = now.num_started - now.num_ended.min(now.num_started);
    format!(
        "{:.0} s · {}{total} done · {running} running · {pieces_per_s:.0} tok/s{ttft} · {} failed",
        now.elapsed.as_secs_f64(),
        now.num_ended,
        now.num_failed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        Snapshot {
            elapsed: Duration::from_secs(5),
            num_started: 30,
            num_ended: 20,
            num_failed: 1,
            num_pieces: 900,
            first_token_p50: Some(Duration::from_millis(41)),
        }
    }

    #[test]
    fn the_line_shows_the_progress() {
        let goal = Goal { num_requests: Some(80), span: None };
        let before = Snapshot { elapsed: Duration::from_secs(4), num_pieces: 400, ..Snapshot::default() };
        assert_eq!(
            line(&goal, &snapshot(), &before),
            "5 s · 20/80 done · 10 running · 500 tok/s · TTFT p50 41 ms · 1 failed"
        );
    }

    #[test]
    fn the_nearer_limit_fills_the_bar() {
        let goal = Goal { num_requests: Some(80), span: Some(Duration::from_secs(10)) };
        assert_eq!(goal.share(&snapshot()), 0.5);
        assert_eq!(Goal { span: Some(Duration::from_secs(1)), ..goal }.share(&snapshot()), 1.0);
        assert_eq!(bar(0.5).chars().filter(|c| *c == '█').count(), BAR_WIDTH / 2);
    }
}
