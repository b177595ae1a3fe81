//! Tests of what operators are told about models, and when.

use std::path::Path;

use penstock_router::proxy::budget::{BudgetOptions, Gigabytes};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::command_lines::Common;
use super::devices::Gpus;
use super::error::FleetError;
use super::roster::{Change, Fleet, ModelEntry, Request};
use crate::hardware::Hardware;
use crate::plan::ProcessSpec;
use crate::supervisor::{Consequence, Event, Exit, ProcessId, Report};

type Answer = oneshot::Receiver<Result<ModelEntry, FleetError>>;

/// A fleet of three places, with `one` and `two` serving.
struct Served {
    fleet: Fleet,
    run_dir: tempfile::TempDir,
}

/// Without a model yet, and with room for three.
fn empty(budget: Option<BudgetOptions>, num_gpus: u32, run_dir: &Path) -> Fleet {
    let gpus = Gpus::new(num_gpus, None).shared(budget.is_some());
    let common = Common {
        words: Vec::new(),
        launcher: "launcher".into(),
        router: "penstock-router".into(),
        run_dir: run_dir.to_owned(),
        keys: None,
        parent_pipe_fd: 7,
        fork_server: None,
        machine_share: 3,
        budget,
    };
    let (_, requests) = mpsc::channel(1);
    Fleet::new(common, Hardware { num_gpus, num_cpus: 4 }, gpus, 3, requests)
}

fn served(num_gpus: u32) -> Served {
    served_within(None, num_gpus)
}

fn served_within(budget: Option<BudgetOptions>, num_gpus: u32) -> Served {
    let run_dir = tempfile::tempdir().expect("folder");
    let mut fleet = empty(budget, num_gpus, run_dir.path());
    for (place, model) in ["one=/m", "two=/n"].into_iter().enumerate() {
        assert_eq!(fleet.add(model.parse().expect("a model")).expect("a place").0, place);
        fleet.on_report(&Report::Loaded(place));
    }
    fleet.on_report(&Report::Serving);
    fleet.translate(Event::Serves(vec![0, 1]));
    Served { fleet, run_dir }
}

impl Served {
    fn load(&mut self, model: &str) -> (Option<Change>, Answer) {
        let (reply, answer) = oneshot::channel();
        let change = self.fleet.on_request(Request::Load(model.parse().expect("a model"), reply));
        (change, answer)
    }

    fn unload(&mut self, name: &str) -> (Option<Change>, Answer) {
        let (reply, answer) = oneshot::channel();
        (self.fleet.on_request(Request::Unload(name.to_owned(), reply)), answer)
    }

    fn states(&mut self) -> Vec<String> {
        let (reply, mut models) = oneshot::channel();
        self.fleet.on_request(Request::List(reply));
        let models = serde_json::to_value(models.try_recv().expect("an answer")).expect("JSON");
        let state =
            |model: &serde_json::Value| format!("{} {}", model["name"], model["state"]).replace('"', "");
        models.as_array().expect("a list").iter().map(state).collect()
    }

    /// The numbers of the models that the proxy is told of.
    fn told(&self) -> Vec<u64> {
        let text = std::fs::read_to_string(self.run_dir.path().join("models.json")).expect("a file");
        let models: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
        models.iter().map(|model| model["number"].as_u64().expect("a number")).collect()
    }
}

fn waits(answer: &mut Answer) -> bool {
    matches!(answer.try_recv(), Err(TryRecvError::Empty))
}

fn error_of(mut answer: Answer) -> FleetError {
    answer.try_recv().expect("an answer").expect_err("refused")
}

#[test]
fn a_load_is_answered_when_the_proxy_serves_the_model() {
    let mut served = served(0);
    let (change, mut answer) = served.load("three=/o");
    assert!(matches!(change, Some(Change::Start(2, _))));
    assert_eq!(served.states(), ["one ready", "two ready", "three loading"]);
    assert_eq!(served.told(), [0, 1]);
    assert_eq!(error_of(served.unload("three").1), FleetError::Busy("three".to_owned()));
    served.fleet.on_report(&Report::Loaded(2));
    assert_eq!(served.told(), [0, 1, 2]);
    assert!(waits(&mut answer), "the proxy does not know it yet");
    assert!(served.fleet.translate(Event::Serves(vec![0, 1, 2])).is_empty());
    assert!(answer.try_recv().expect("an answer").is_ok());
}

#[test]
fn an_unload_is_answered_when_all_processes_have_ended_and_the_place_is_free() {
    let mut served = served(0);
    let (change, mut answer) = served.unload("one");
    assert!(change.is_none(), "its requests are finished first");
    assert_eq!((served.told(), served.states()), (vec![1], vec!["one unloading".into(), "two ready".into()]));
    assert_eq!(served.fleet.translate(Event::Removed(1)), [], "that one is not unloaded");
    assert_eq!(served.fleet.translate(Event::Removed(0)), [Event::Removed(0)]);
    assert!(waits(&mut answer));
    served.fleet.on_report(&Report::Removed(0));
    assert!(answer.try_recv().expect("an answer").is_ok());
    assert_eq!(error_of(served.unload("two").1), FleetError::Last("two".to_owned()));
    assert_eq!(error_of(served.unload("one").1), FleetError::Unknown("one".to_owned()));
    let (change, _answer) = served.load("three=/o");
    assert!(matches!(change, Some(Change::Start(0, _))), "in the place that is free");
    served.fleet.on_report(&Report::Loaded(0));
    assert_eq!(served.told(), [1, 2], "under a number of its own, behind those that were there before");
    assert_eq!(served.fleet.translate(Event::Removed(0)), [], "an old proxy means the model that is gone");
}

#[test]
fn a_model_that_cannot_be_loaded_leaves_its_place_with_the_reason() {
    let mut served = served(0);
    let (_, answer) = served.load("three=/nowhere");
    let shard = ProcessId::Shard { group: 2, rank: 0 };
    let exit = Exit {
        code: None,
        status: "exit code 1".to_owned(),
        last_error: vec!["error: no such folder".to_owned()],
    };
    served.fleet.on_report(&Report::Died(shard, exit, Consequence::Drop));
    served.fleet.on_report(&Report::Removed(2));
    let reason = "error: no such folder".to_owned();
    assert_eq!(error_of(answer), FleetError::NotLoaded { name: "three".to_owned(), reason });
    assert_eq!(served.states(), ["one ready", "two ready"]);
}

#[test]
fn a_proxy_that_ended_has_no_requests_of_a_model_that_is_unloaded() {
    let mut served = served(0);
    let exited = || {
        Event::Exited(ProcessId::Router, Exit { code: None, status: String::new(), last_error: Vec::new() })
    };
    let (_, _answer) = served.unload("one");
    assert_eq!(served.fleet.translate(exited()), [exited(), Event::Removed(0)]);
    served.fleet.on_report(&Report::Removed(0));
    let (_, _answer) = served.load("three=/o");
    served.fleet.on_report(&Report::Loaded(0));
    served.fleet.translate(Event::Serves(vec![1, 2]));
    served.fleet.translate(exited());
    assert!(matches!(served.unload("two").0, Some(Change::End(1))), "there is no proxy to say when");
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_started() {
    let mut served = served(3);
    let refused = |served: &mut Served, model: &str| {
        let (change, answer) = served.load(model);
        assert!(change.is_none());
        error_of(answer)
    };
    assert_eq!(
        refused(&mut served, "three=/o,num_shard=2"),
        FleetError::TooFewGpus { needed: 2, free: 1, visible: 3 }
    );
    assert_eq!(refused(&mut served, "one=/o"), FleetError::NameOfTwo("one".to_owned()));
    assert!(matches!(served.load("three=/o").0, Some(Change::Start(..))));
    assert_eq!(refused(&mut served, "four=/o"), FleetError::TooMany { most: 3 });
    served.fleet.on_report(&Report::Draining(std::time::Duration::ZERO));
    assert_eq!(refused(&mut served, "five=/o"), FleetError::NotServing);
}

fn budget(max_awake: u32) -> Option<BudgetOptions> {
    Some(BudgetOptions { max_awake_models: Some(max_awake), sleep_level: 1, ..BudgetOptions::default() })
}

#[test]
fn models_beyond_the_budget_start_first_and_asleep() {
    let start = |max_awake, num_gpus, models: &[&str]| {
        let mut fleet = empty(budget(max_awake), num_gpus, Path::new("/tmp/penstock-x"));
        let processes = models.iter().map(|model| fleet.add(model.parse().expect("a model")));
        let asleep =
            |(_, process): (usize, ProcessSpec)| process.args.contains(&"--asleep-at-start=1".to_owned());
        let asleep: Vec<_> = processes.map(|added| asleep(added.expect("a place"))).collect();
        (asleep, fleet.order_of_start())
    };
    let three = ["a=/m", "b=/m", "c=/m"];
    assert_eq!(start(2, 0, &three), (vec![false, false, true], vec![vec![2], vec![0], vec![1]]));
    assert_eq!(start(1, 1, &three), (vec![false, true, true], vec![vec![1], vec![2], vec![0]]));
    // On GPU 0 and 1; the third takes turns with the first.
    assert_eq!(start(3, 2, &three).0, [false, false, true]);
    assert_eq!(start(3, 2, &["a=/m,num_shard=2", "b=/m"]).0, [false, true]);
}

#[test]
fn where_bytes_count_the_first_model_starts_awake_and_last() {
    let bytes = BudgetOptions {
        max_awake_gb: Some(Gigabytes::of_bytes(1)),
        sleep_level: 1,
        ..BudgetOptions::default()
    };
    for budget in [bytes.clone(), BudgetOptions { max_awake_models: Some(2), ..bytes }] {
        let mut fleet = empty(Some(budget), 0, Path::new("/tmp/penstock-x"));
        let mut flags = Vec::new();
        for model in ["a=/m", "b=/m", "c=/m"] {
            flags.push(fleet.add(model.parse().expect("a model")).expect("a place").1.args.join(" "));
        }
        assert_eq!(fleet.order_of_start(), [[1], [2], [0]]);
        let asleep = |flags: &String| flags.contains("--asleep-at-start=1");
        assert_eq!(flags.iter().map(asleep).collect::<Vec<_>>(), [false, true, true]);
        assert!(flags.iter().all(|flags| flags.contains("--max-awake-bytes=1:1")));
    }
}

#[test]
fn a_model_is_loaded_under_a_budget_when_there_is_room() {
    let mut served = served_within(budget(2), 1);
    served.fleet.translate(Event::Awake(vec![0]));
    assert_eq!(served.states(), ["one ready", "two asleep"]);
    let (change, mut answer) = served.load("three=/o");
    assert!(matches!(change, Some(Change::Prepare(2, _))));
    assert_eq!(served.told(), [0, 1, 2], "so that the proxy makes room");
    assert_eq!(served.fleet.translate(Event::Room(2)), [Event::Added(2)]);
    assert_eq!(served.fleet.translate(Event::Room(2)), [], "said again by another proxy");
    served.fleet.on_report(&Report::Loaded(2));
    served.fleet.translate(Event::Serves(vec![0, 1, 2]));
    assert!(answer.try_recv().expect("an answer").is_ok());
    let (_, _answer) = served.unload("three");
    served.fleet.on_report(&Report::Removed(2));
    let (_, answer) = served.load("four=/nowhere");
    served.fleet.on_report(&Report::Removed(2));
    assert_eq!((error_of(answer), served.told()), (FleetError::NotServing, vec![0, 1]));
}
