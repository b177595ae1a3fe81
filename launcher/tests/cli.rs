//! Runs the launcher's binary, with scripts in the place of Python and of the router. tests/e2e tests the whole system.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// A file cannot be executed ("text file busy") while a child that another test is just starting still has it open for
/// writing. The lock keeps writing and starting apart.
static WRITING_OR_STARTING: Mutex<()> = Mutex::new(());

/// How long a test waits for an event that must happen; long, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the launcher waits for children after a SIGTERM before it kills them.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// An installation in a folder of its own: the launcher, and scripts in the same folder.
struct Installation {
    folder: TempDir,
}

impl Installation {
    /// `shard` is the script that runs in the place of `python -m penstock_server`.
    fn new(shard: &str) -> Self {
        let _turn = WRITING_OR_STARTING.lock().expect("no test fails here");
        let installation = Self { folder: tempfile::tempdir().expect("folder") };
        let resolve = "case \"$3\" in *resolve) echo '{\"folder\": \"/models/m\", \"tokenizer\": \"/models/m/tokenizer.json\"}'; exit;; esac";
        installation.script("python", &format!("{resolve}\n{shard}"));
        installation.router("exit 0");
        std::fs::copy(env!("CARGO_BIN_EXE_launcher"), installation.path("launcher")).expect("copy");
        installation
    }

    /// `check` is the script that runs in the place of the router's check of its files.
    fn router(&self, check: &str) {
        self.script("penstock-router", &format!("case \"$*\" in *--check*) {check};; esac\nexit 9"));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn script(&self, name: &str, body: &str) {
        let path = self.path(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("script");
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("mode");
    }

    fn start(&self, flags: &[&str]) -> Child {
        self.start_with(flags, &[])
    }

    fn start_with(&self, flags: &[&str], variables: &[(&str, &str)]) -> Child {
        let mut command = Command::new(self.path("launcher"));
        // The scripts are shards, and fork none.
        command.env("PENSTOCK_FORK_SERVER", "off").envs(variables.iter().copied());
        command.args(["--device=cpu", "--port=0"]).args(flags).env("TMPDIR", self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let _turn = WRITING_OR_STARTING.lock().expect("no test fails here");
        command.spawn().expect("start")
    }

    fn run(&self, flags: &[&str]) -> (Option<i32>, String) {
        ended(self.start(flags).wait_with_output().expect("output"))
    }

    fn run_with(&self, flags: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
        ended(self.start_with(flags, variables).wait_with_output().expect("output"))
    }

    /// Waits until the shards have written `count` files `pid.*`, and returns the process ids in them.
    fn wait_for_pids(&self, count: usize) -> Vec<Pid> {
        wait_until(|| {
            let pids: Vec<Pid> =
                entries(self.folder.path(), "pid.").iter().filter_map(|path| read_pid(path)).collect();
            (pids.len() == count).then_some(pids)
        })
    }

    fn run_dirs(&self) -> usize {
        entries(self.folder.path(), "penstock-").iter().filter(|path| path.is_dir()).count()
    }
}

fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry").path());
    all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        .collect()
}

fn read_pid(path: &Path) -> Option<Pid> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok().map(Pid::from_raw)
}

fn ended(output: Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn wait_until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(launcher: &Child, signal: Signal) {
    kill(Pid::from_raw(launcher.id().cast_signed()), signal).expect("signal");
}

/// Waits until no process runs. A zombie counts as ended: its parent has not waited for it yet.
fn assert_all_end(pids: Vec<Pid>) {
    let runs = |pid: &Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
    };
    wait_until(|| (!pids.iter().any(runs)).then_some(()));
}

/// A shard that loads for ever, with a child of its own; it leaves both process ids in files.
const LOADS_FOR_EVER: &str =
    "cd \"$(dirname \"$0\")\"; sleep 600 & echo $! > pid.$$.child; echo $$ > pid.$$; wait";

/// Like [`LOADS_FOR_EVER`], but it ignores SIGTERM and writes the file `asked` when it gets it.
const IGNORES_SIGTERM: &str = "cd \"$(dirname \"$0\")\"; trap '' TERM; sleep 600 & echo $! > pid.$$.child;
    trap 'touch asked' TERM; echo $$ > pid.$$; while :; do wait; done";

#[test]
fn the_whole_error_of_a_shard_that_fails_at_start_is_printed() {
    let shard = "echo loading >&2; echo 'Traceback (most recent call last):' >&2; echo 'ValueError: no heads' >&2; exit 3";
    let (code, stderr) = Installation::new(shard).run(&[]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("shard 0 | loading"), "{stderr}");
    let expected = "error: shard 0 ended (exit code 3), so everything stops. Its last error:\n  \
                Traceback (most recent call last):\n  ValueError: no heads\n";
    assert!(stderr.contains(expected), "{stderr}");
}

#[test]
fn shards_are_started_plainly_where_no_fork_server_runs() {
    let shard =
        "case \"$*\" in *fork_server*) echo 'no torch' >&2; exit 5;; esac; echo \"shard $*\" >&2; exit 3";
    let elsewhere = [("PENSTOCK_FORK_SERVER", "/no/such.sock")];
    let (code, stderr) = Installation::new(shard).run_with(&[], &elsewhere);
    assert_eq!(code, Some(1));
    for said in [
        "shard 0 is not forked through /no/such.sock: No such file",
        "fork server | no torch\n",
        "The fork server does not run (exit code 5); shards are started without it\n",
        "shard 0 | shard -P -m penstock_server --",
        "error: shard 0 ended (exit code 3), so everything stops",
    ] {
        assert!(stderr.contains(said), "{said}: {stderr}");
    }
}

#[test]
fn a_shard_that_fails_ends_the_other_shards_and_their_children() {
    // Shard 1 fails when shard 0 has written both of its files.
    let fails = "*--rank=1*) until [ \"$(ls \"$(dirname \"$0\")\" | grep -c '^pid')\" = 2 ]; do sleep 0.05; done; exit 1";
    let installation = Installation::new(&format!("case \"$*\" in {fails};; esac\n{LOADS_FOR_EVER}"));
    let launcher = installation.start(&["--num-shard=2"]);
    let pids = installation.wait_for_pids(2);
    let (code, stderr) = ended(launcher.wait_with_output().expect("output"));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("shard 1 ended (exit code 1)"), "{stderr}");
    assert_all_end(pids);
    assert_eq!(installation.run_dirs(), 0);
}

#[test]
fn sigterm_while_loading_stops_everything_with_exit_code_0() {
    let installation = Installation::new(LOADS_FOR_EVER);
    let launcher = installation.start(&["--num-shard=2"]);
    let pids = installation.wait_for_pids(4);
    signal(&launcher, Signal::SIGTERM);
    assert_eq!(ended(launcher.wait_with_output().expect("output")).0, Some(0));
    assert_all_end(pids);
    assert_eq!(installation.run_dirs(), 0);
}

#[test]
fn children_that_ignore_sigterm_are_killed_by_a_second_signal() {
    let installation = Installation::new(IGNORES_SIGTERM);
    let launcher = installation.start(&[]);
    let pids = installation.wait_for_pids(2);
    signal(&launcher, Signal::SIGTERM);
    wait_until(|| installation.path("asked").exists().then_some(()));
    let asked = Instant::now();
    signal(&launcher, Signal::SIGINT);
    assert_eq!(ended(launcher.wait_with_output().expect("output")).0, Some(0));
    assert!(asked.elapsed() < STOP_TIMEOUT, "they are not waited for");
    assert_all_end(pids);
}

#[test]
fn a_startup_timeout_names_the_shards_that_are_not_ready() {
    let (code, stderr) = Installation::new(LOADS_FOR_EVER).run(&["--startup-timeout=1"]);
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains("error: shard 0 did not get ready in time; --startup-timeout allows more"),
        "{stderr}"
    );
}

#[test]
fn a_port_in_use_is_reported_in_one_line_before_loading() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("port");
    let port = taken.local_addr().expect("address").port();
    let (code, stderr) = Installation::new("touch loaded").run(&[&format!("--port={port}")]);
    assert_eq!(code, Some(2));
    assert!(stderr.starts_with(&format!("error: cannot listen on 127.0.0.1:{port}: ")), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn of_two_launchers_on_one_port_the_second_ends_before_loading() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("port").port();
    let port = format!("--port={port}");
    let (first, second) =
        (Installation::new(LOADS_FOR_EVER), Installation::new("touch \"$(dirname \"$0\")/loaded\""));
    let launcher = first.start(&[&port]);
    first.wait_for_pids(2);
    let (code, stderr) = second.run(&[&port]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.starts_with("error: cannot listen on 127.0.0.1:"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(!second.path("loaded").exists());
    signal(&launcher, Signal::SIGTERM);
    assert_eq!(ended(launcher.wait_with_output().expect("output")).0, Some(0));
}

#[test]
fn files_that_the_router_refuses_are_reported_before_loading() {
    let installation = Installation::new("touch \"$(dirname \"$0\")/loaded\"");
    installation.router("echo 'error: cannot load the tokenizer x: no JSON' >&2; exit 1");
    let (code, stderr) = installation.run(&["--log-level=warn"]);
    assert_eq!((code, stderr.as_str()), (Some(1), "error: cannot load the tokenizer x: no JSON\n"));
    assert!(!installation.path("loaded").exists());
}

#[test]
fn a_killed_shard_that_reported_no_error_has_none() {
    let shard = "echo '2026-01-01T00:00:00.000Z  INFO penstock_server: ready' >&2; kill -9 $$";
    let (_, stderr) = Installation::new(shard).run(&[]);
    assert!(
        stderr.contains(
            "error: shard 0 ended (signal 9, SIGKILL), so everything stops; it reported no error\n"
        ),
        "{stderr}"
    );
}

#[test]
fn one_level_of_logs_is_for_all_processes() {
    let installation = Installation::new("echo \"shard $*\" >&2; exit 1");
    installation.router("echo \"router $*\" >&2; exit 0");
    let levels = |flags: &[&str], variables: &[(&str, &str)]| {
        let (_, stderr) = installation.run_with(flags, variables);
        let level_of = |process: &str| {
            let line = stderr.lines().find(|line| line.contains(process)).unwrap_or_default().to_owned();
            line.split(" --log-level=").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned)
        };
        (level_of("| router "), level_of("| shard "), stderr.contains("Loading the model on the CPU"))
    };
    let all =
        |router: &str, shard: &str, launcher| (Some(router.to_owned()), Some(shard.to_owned()), launcher);
    assert_eq!(levels(&[], &[]), all("info", "info", true));
    assert_eq!(levels(&[], &[("RUST_LOG", "warn")]), all("warn", "warn", false));
    assert_eq!(levels(&[], &[("RUST_LOG", "warn"), ("LOG_LEVEL", "DEBUG")]), all("debug", "debug", true));
    let parts = "--log-level=error,penstock_server=info";
    assert_eq!(levels(&[parts], &[("LOG_LEVEL", "debug")]), all("error,penstock_server=info", "info", false));
    let (code, stderr) = installation.run(&["--log-level=loud"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("\"loud\" is no level; expected off, error, warn"), "{stderr}");
}

#[test]
fn boolean_variables_take_the_spellings_of_tgi() {
    let installation = Installation::new("exit 1");
    let is_json = |value: &str| {
        let (code, stderr) = installation.run_with(&[], &[("JSON_OUTPUT", value)]);
        assert_eq!(code, Some(1), "{stderr}");
        stderr.starts_with('{')
    };
    assert!(["1", "TRUE", "yes", "On"].into_iter().all(is_json));
    assert!(!["0", "false", "No", "OFF", ""].into_iter().any(is_json));
}

#[test]
fn limits_that_contradict_each_other_are_refused_before_loading() {
    let installation = Installation::new("touch \"$(dirname \"$0\")/loaded\"");
    let (code, stderr) = installation.run(&["--max-input-tokens=9", "--max-total-tokens=9"]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.starts_with("error: --max-input-tokens 9 must be less than --max-total-tokens 9"),
        "{stderr}"
    );
    assert!(!installation.path("loaded").exists());
}

#[test]
fn the_error_for_a_missing_interpreter_names_its_path() {
    let installation = Installation::new("");
    std::fs::remove_file(installation.path("python")).expect("python");
    let (code, stderr) = installation.run(&[]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains(&format!("{} is missing", installation.path("python").display())), "{stderr}");
}

#[test]
fn a_model_that_cannot_be_resolved_is_reported_once() {
    let installation = Installation::new("");
    installation.script("python", "echo 'error: no folder nowhere' >&2; exit 1");
    let (code, stderr) = installation.run(&["--model-id=nowhere"]);
    assert_eq!((code, stderr.as_str()), (Some(1), "error: no folder nowhere\n"));
}

#[test]
fn every_line_of_json_output_is_json() {
    let shard = "echo '{\"level\":\"WARN\",\"message\":\"hot\"}' >&2; echo plain; exit 1";
    let (_, stderr) = Installation::new(shard).run(&["--json-output"]);
    let lines: Vec<serde_json::Value> =
        stderr.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    assert!(lines.iter().any(|line| line["process"] == "shard 0" && line["level"] == "WARN"));
    assert!(lines.iter().any(|line| line["message"] == "plain"));
    assert!(lines.iter().any(|line| line["process"] == "launcher" && line["level"] == "ERROR"));
}

#[test]
fn keys_are_passed_in_a_private_file_and_not_in_arguments_or_variables() {
    let shard = "for a in \"$@\"; do case $a in --uds-path=*) cat \"$(dirname \"${a#*=}\")/api-keys\" >&2;; esac; done
        echo \"env ${API_KEY-none} args $*\" >&2; exit 1";
    let installation = Installation::new(shard);
    std::fs::write(installation.path("keys"), "of-the-file\n").expect("keys");
    let file = format!("--api-key-file={}", installation.path("keys").display());
    let (_, stderr) = installation.run(&["--api-key=of-a-flag", "--api-key", "of-another", &file]);
    for key in ["of-a-flag", "of-another", "of-the-file"] {
        assert!(stderr.contains(&format!("shard 0 | {key}\n")), "{stderr}");
        let command_lines = stderr.lines().filter(|line| line.contains("--rendezvous-dir"));
        assert!(command_lines.into_iter().all(|line| !line.contains(key)), "{stderr}");
    }
    assert!(stderr.contains("env none args "), "{stderr}");
}

#[test]
fn empty_keys_are_refused_before_loading() {
    let installation = Installation::new("touch loaded");
    let (code, stderr) = installation.run(&["--api-key="]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("an API key must not be empty"), "{stderr}");
    std::fs::write(installation.path("keys"), "\n").expect("keys");
    let (code, stderr) =
        installation.run(&[&format!("--api-key-file={}", installation.path("keys").display())]);
    assert_eq!((code, stderr.ends_with("/keys has no key\n")), (Some(2), true), "{stderr}");
}

/// Runs `check-tgi-args` with only these variables; returns its exit code and stdout.
fn check(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_launcher"));
    command.arg("check-tgi-args").args(arguments).env_clear().envs(variables.iter().copied());
    let output = command.output().expect("output");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn check_tgi_args_prints_the_example_of_the_documentation() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/moving-from-tgi.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let blocks: Vec<String> = page.split("```").map(|block| block.replace("\n   ", "\n")).collect();
    let line = blocks[1].trim_start_matches("sh").trim().trim_start_matches("launcher check-tgi-args ");
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let (code, output) = check(&arguments, &[]);
    assert_eq!((code, output.trim()), (Some(2), blocks[3].trim()));
}

#[test]
fn check_tgi_args_explains_variables_that_the_launcher_refuses() {
    let (code, output) =
        check(&["--json", "--model-id", "m"], &[("KV_CACHE_DTYPE", "fp8_e5m2"), ("API_KEY", "k")]);
    let output: serde_json::Value = serde_json::from_str(&output).expect("one JSON object");
    assert_eq!((code, &output["is_accepted"]), (Some(2), &serde_json::Value::Bool(false)));
    let status = |name: &str| {
        let all = output["arguments"].as_array().expect("a list");
        all.iter().find(|finding| finding["argument"] == name).map(|finding| finding["status"].clone())
    };
    assert_eq!(status("KV_CACHE_DTYPE"), Some("refused".into()));
    assert_eq!(status("API_KEY"), Some("kept".into()));
    assert_eq!(check(&["--model-id", "m", "--port", "80"], &[]).0, Some(0));
}

#[test]
fn the_former_name_of_a_variable_is_read() {
    let start = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_launcher"));
        command.arg("--markdown-help").env_clear().envs(variables.iter().copied());
        ended(command.output().expect("output"))
    };
    let (code, stderr) = start(&[("MAX_INPUT_LENGTH", "many")]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("invalid value 'many' for '--max-input-tokens"), "{stderr}");
    assert_eq!(start(&[("MAX_INPUT_LENGTH", "many"), ("MAX_INPUT_TOKENS", "7")]).0, Some(0));
}
