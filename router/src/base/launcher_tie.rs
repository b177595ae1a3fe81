//! Ends a process together with the launcher that started it, by whatever cause the launcher ended.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::process::{Signal, getpid, kill_process};

/// Blocks until the writing end of this inherited pipe is closed, which only the launcher has; then removes `run_dir` and kills
/// this process.
pub fn end_with_launcher(fd: i32, run_dir: Option<&Path>) {
    let Ok(mut pipe) = File::open(format!("/dev/fd/{fd}")) else { return };
    let _ = pipe.read(&mut [0]);
    let _ = run_dir.map(std::fs::remove_dir_all);
    let _ = kill_process(getpid(), Signal::KILL);
}
