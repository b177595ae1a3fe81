//! The models of a server that has several: the state of each, and the requests of operators that are not answered yet.
//! It handles no process: it says which model is to be started or ended, and is told the result.

use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::command_lines::{Checked, Common, write_models};
use super::devices::Gpus;
use super::error::FleetError;
use super::names;
use crate::args::ModelSpec;
use crate::hardware::Hardware;
use crate::plan::ProcessSpec;
use crate::supervisor::{Consequence, Event, Part, ProcessId, Report};

/// The answer to a request.
pub type Reply = oneshot::Sender<Result<ModelEntry, FleetError>>;

/// A request of an operator.
pub enum Request {
    /// All models.
    List(oneshot::Sender<Vec<ModelEntry>>),
    /// Load a model; the answer comes when it serves, or cannot.
    Load(ModelSpec, Reply),
    /// Unload the model of this name; the answer comes when all its processes have ended.
    Unload(String, Reply),
    /// End the model of this name now, if it is being unloaded.
    End(String),
}

/// A model, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelEntry {
    name: String,
    model: String,
    state: &'static str,
    /// Its adapters, which requests may name, too.
    adapters: Vec<String>,
    gpus: Vec<String>,
}

/// The number of a model, which no other ever has.
type ModelId = usize;

struct Model {
    id: ModelId,
    spec: ModelSpec,
    checked: Checked,
    gpus: Vec<String>,
    state: State,
    /// Whether it is awake from the start on.
    starts_awake: bool,
    /// Whether its processes are yet to be started, when the proxy says that there is room.
    awaits_room: bool,
    /// The operator who waits for the next state.
    waiter: Option<Reply>,
    /// Why it could not be started.
    failure: Option<String>,
    /// Whether it failed so often that it is started no more.
    is_down: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Loading,
    Ready,
    Unloading,
}

/// All models, each in a place, which is the number of its group of processes.
pub struct Fleet {
    common: Common,
    hardware: Hardware,
    gpus: Gpus,
    places: Vec<Option<Model>>,
    next_id: ModelId,
    is_serving: bool,
    /// Whether a proxy runs that has said which models it serves.
    is_proxy_up: bool,
    /// The models that the proxy says are awake.
    awake: Vec<ModelId>,
    requests: mpsc::Receiver<Request>,
}

impl Fleet {
    /// Places for so many models, all of them free.
    pub fn new(
        common: Common,
        hardware: Hardware,
        gpus: Gpus,
        num_places: usize,
        requests: mpsc::Receiver<Request>,
    ) -> Self {
        let places = (0..num_places).map(|_| None).collect();
        Self {
            common,
            hardware,
            gpus,
            places,
            next_id: 0,
            is_serving: false,
            is_proxy_up: false,
            awake: Vec::new(),
            requests,
        }
    }

    /// Gives a model a place; its processes are to be started there.
    pub fn add(&mut self, spec: ModelSpec) -> Result<(usize, ProcessSpec), FleetError> {
        let checked = self.common.check(&spec, &self.hardware)?;
        names::check(self.models().flat_map(|model| &model.checked.names), checked.names.iter())?;
        let free = self.places.iter().position(Option::is_none);
        let place = free.ok_or(FleetError::TooMany { most: self.places.len() })?;
        let gpus = self.gpus.take(checked.num_gpus)?;
        let starts_awake = self.may_start_awake(&gpus);
        let process = self.common.model(place, &checked, &gpus, starts_awake);
        let id = self.next_id;
        self.next_id += 1;
        self.places[place] = Some(Model {
            id,
            spec,
            checked,
            gpus,
            state: State::Loading,
            starts_awake,
            awaits_room: self.is_serving && self.common.budget.is_some(),
            waiter: None,
            failure: None,
            is_down: false,
        });
        Ok((place, process))
    }

    /// Whether a model on these GPUs fits into the budget, beside those that start awake. A model that is loaded while
    /// others serve sleeps until it is needed. If the budget counts bytes, only one model starts awake, because bytes
    /// are known when a model is loaded: the proxy then wakes others that fit beside it.
    fn may_start_awake(&self, gpus: &[String]) -> bool {
        let Some(budget) = &self.common.budget else { return true };
        let most = budget.max_awake_gb.map_or(budget.max_awake_models, |_| Some(1)).unwrap_or(u32::MAX);
        let awake = || self.models().filter(|model| model.starts_awake);
        let is_free = |gpu: &String| !awake().any(|model| model.gpus.contains(gpu));
        !self.is_serving && awake().count() < most as usize && gpus.iter().all(is_free)
    }

    /// The places of the models of the start, in lists of those that start together. With a budget, each model starts
    /// alone, first those that sleep afterwards: so each has room while it is loaded.
    pub fn order_of_start(&self) -> Vec<Vec<usize>> {
        let there = |place: &usize| self.places[*place].is_some();
        let mut places: Vec<_> = (0..self.places.len()).filter(there).collect();
        if self.common.budget.is_none() {
            return vec![places];
        }
        places.sort_by_key(|place| self.places[*place].as_ref().is_some_and(|model| model.starts_awake));
        places.into_iter().map(|place| vec![place]).collect()
    }

    /// The name of the model in a place.
    pub fn name(&self, place: usize) -> Option<&str> {
        self.places.get(place)?.as_ref().map(|model| model.spec.name.as_str())
    }

    /// Waits for the next request; for ever when nobody can ask.
    pub async fn next_request(&mut self) -> Request {
        match self.requests.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }

    /// Answers a request, or says what is to be done for it: a model to start in a place, or one to end.
    pub fn on_request(&mut self, request: Request) -> Option<Change> {
        match request {
            Request::List(reply) => {
                let _ = reply.send(self.in_order().into_iter().map(|model| self.entry(model)).collect());
                None
            }
            Request::Load(spec, reply) => self.load(spec, reply),
            Request::Unload(name, reply) => match self.check_unload(&name) {
                Ok(place) => self.unload(place, reply),
                Err(error) => {
                    let _ = reply.send(Err(error));
                    None
                }
            },
            Request::End(name) => {
                let place = self.place_of(&name)?;
                let is_unloading = self.places[place].as_ref().is_some_and(|it| it.state == State::Unloading);
                is_unloading.then_some(Change::End(place))
            }
        }
    }

    fn load(&mut self, spec: ModelSpec, reply: Reply) -> Option<Change> {
        let added = if self.is_serving { self.add(spec) } else { Err(FleetError::NotServing) };
        match added {
            Ok((place, process)) => {
                let model = self.places[place].as_mut()?;
                model.waiter = Some(reply);
                if !model.awaits_room {
                    return Some(Change::Start(place, process));
                }
                self.publish();
                Some(Change::Prepare(place, process))
            }
            Err(error) => {
                let _ = reply.send(Err(error));
                None
            }
        }
    }

    /// The place of a model that may be unloaded.
    fn check_unload(&self, name: &str) -> Result<usize, FleetError> {
        let place = self.place_of(name).ok_or_else(|| FleetError::Unknown(name.to_owned()))?;
        let is_busy = |model: &Model| model.state != State::Ready || model.waiter.is_some();
        if self.places[place].as_ref().is_none_or(is_busy) {
            return Err(FleetError::Busy(name.to_owned()));
        }
        let num_ready = self.models().filter(|model| model.state == State::Ready && !model.is_down).count();
        let is_last = num_ready == usize::from(self.places[place].as_ref().is_some_and(|it| !it.is_down));
        if is_last { Err(FleetError::Last(name.to_owned())) } else { Ok(place) }
    }

    /// The proxy says when no request has the model any more; one that does not run has none.
    fn unload(&mut self, place: usize, reply: Reply) -> Option<Change> {
        let model = self.places[place].as_mut()?;
        (model.state, model.waiter) = (State::Unloading, Some(reply));
        self.publish();
        (!self.is_proxy_up).then_some(Change::End(place))
    }

    /// Takes note of what the supervisor reports.
    pub fn on_report(&mut self, report: &Report) {
        match report {
            Report::Serving => self.is_serving = true,
            Report::Draining(_) => self.is_serving = false,
            Report::Loaded(place) => {
                if let Some(model) = self.places[*place].as_mut() {
                    model.state = State::Ready;
                }
                self.publish();
            }
            Report::Removed(place) => self.on_gone(*place),
            Report::LeftDown(Part::Group(place), ..) => {
                if let Some(model) = self.places[*place].as_mut() {
                    model.is_down = true;
                }
            }
            Report::Died(ProcessId::Shard { group, .. }, exit, Consequence::Drop) => {
                let last = exit.last_error.first().map_or(&exit.status, |line| line);
                self.note_failure(*group, last.clone());
            }
            Report::Hung(ProcessId::Shard { group, .. }, reason, Consequence::Drop) => {
                self.note_failure(*group, reason.clone());
            }
            Report::NotReady(processes, Consequence::Drop) => {
                for process in processes {
                    if let ProcessId::Shard { group, .. } = process {
                        self.note_failure(*group, "it did not get ready in time".to_owned());
                    }
                }
            }
            _ => {}
        }
    }

    /// Translates an event into events about processes: the proxy knows models by their ids, and a proxy that ended has
    /// no request of a model that is being unloaded.
    pub fn translate(&mut self, event: Event) -> Vec<Event> {
        match event {
            Event::Removed(id) => self.unloading(|model| model.id == id),
            Event::Serves(ids) => {
                self.on_serves(&ids);
                Vec::new()
            }
            Event::Room(id) => self.on_room(id),
            Event::Awake(ids) => {
                self.awake = ids;
                Vec::new()
            }
            Event::Exited(ProcessId::Router, _) => {
                self.is_proxy_up = false;
                let removed = self.unloading(|_| true);
                std::iter::once(event).chain(removed).collect()
            }
            other => vec![other],
        }
    }

    /// The proxy says that there is room for a model. It may repeat that after it was started again.
    fn on_room(&mut self, id: ModelId) -> Vec<Event> {
        let is_it = |model: &Option<Model>| model.as_ref().is_some_and(|it| it.id == id && it.awaits_room);
        let Some(place) = self.places.iter().position(is_it) else { return Vec::new() };
        self.places[place].iter_mut().for_each(|model| model.awaits_room = false);
        vec![Event::Added(place)]
    }

    /// The events for models that are being unloaded.
    fn unloading(&self, is_one: impl Fn(&Model) -> bool) -> Vec<Event> {
        let places = self.places.iter().enumerate().filter(|(_, model)| {
            model.as_ref().is_some_and(|model| model.state == State::Unloading && is_one(model))
        });
        places.map(|(place, _)| Event::Removed(place)).collect()
    }

    fn on_serves(&mut self, ids: &[ModelId]) {
        self.is_proxy_up = true;
        let served = self.places.iter_mut().flatten().filter(|model| ids.contains(&model.id));
        for model in served.filter(|model| model.state == State::Ready) {
            if let Some(waiter) = model.waiter.take() {
                let _ = waiter.send(Ok(model.entry()));
            }
        }
    }

    fn on_gone(&mut self, place: usize) {
        let Some(mut model) = self.places[place].take() else { return };
        self.gpus.give_back(&model.gpus);
        let name = model.spec.name.clone();
        let answer = match (model.state, model.failure.take()) {
            (State::Unloading, _) => Ok(ModelEntry { state: "unloaded", gpus: Vec::new(), ..model.entry() }),
            (_, Some(reason)) => Err(FleetError::NotLoaded { name, reason }),
            (_, None) => Err(FleetError::NotServing),
        };
        if let Some(waiter) = model.waiter {
            let _ = waiter.send(answer);
        }
        if model.state == State::Loading && self.common.budget.is_some() {
            // There is no need for room any more.
            self.publish();
        }
    }

    fn note_failure(&mut self, place: usize, reason: String) {
        if let Some(model) = self.places[place].as_mut() {
            model.failure = Some(reason);
        }
    }

    /// Tells the proxy which models there are. If that fails, those that wait are told.
    fn publish(&mut self) {
        let entries: Vec<_> = self
            .in_order()
            .into_iter()
            .filter(|model| {
                model.state == State::Ready || self.common.budget.is_some() && model.state == State::Loading
            })
            .map(|model| self.served(model))
            .collect();
        let text = serde_json::to_string(&entries).unwrap_or_default();
        if let Err(error) = write_models(&self.common.models_file(), &text) {
            for model in self.places.iter_mut().flatten() {
                let name = model.spec.name.clone();
                let reason = format!("the proxy cannot be told: {error}");
                model.state = if model.state == State::Unloading { State::Ready } else { model.state };
                if let Some(waiter) = model.waiter.take() {
                    let _ = waiter.send(Err(FleetError::NotLoaded { name, reason }));
                }
            }
        }
    }

    fn served(&self, model: &Model) -> serde_json::Value {
        let place = self.place_of(&model.spec.name).unwrap_or_default();
        let upstream = format!("unix:{}", self.common.socket(place).display());
        let rest = self.common.budget.as_ref().map(|_| {
            serde_json::json!({
                "admin_socket": self.common.admin_socket(place),
                "devices": model.gpus,
                "is_loading": model.state == State::Loading,
            })
        });
        serde_json::json!({
            "number": model.id,
            "names": model.checked.names,
            "upstreams": [upstream],
            "rest": rest,
        })
    }

    /// The model as operators see it. With a budget, a model that serves may sleep.
    fn entry(&self, model: &Model) -> ModelEntry {
        let entry = model.entry();
        let sleeps = self.common.budget.is_some() && !self.awake.contains(&model.id);
        if sleeps && entry.state == "ready" { ModelEntry { state: "asleep", ..entry } } else { entry }
    }

    fn models(&self) -> impl Iterator<Item = &Model> {
        self.places.iter().flatten()
    }

    /// The first is the one that was there first: requests that name none are for it.
    fn in_order(&self) -> Vec<&Model> {
        let mut models: Vec<_> = self.models().collect();
        models.sort_by_key(|model| model.id);
        models
    }

    fn place_of(&self, name: &str) -> Option<usize> {
        self.places.iter().position(|it| it.as_ref().is_some_and(|model| model.spec.name == name))
    }
}

impl Model {
    fn entry(&self) -> ModelEntry {
        ModelEntry {
            name: self.spec.name.clone(),
            model: self.spec.model.clone(),
            state: match self.state {
                State::Loading => "loading",
                State::Ready if self.is_down => "down",
                State::Ready => "ready",
                State::Unloading => "unloading",
            },
            adapters: self.checked.names.iter().skip(1).cloned().collect(),
            gpus: self.gpus.clone(),
        }
    }
}

/// The change that follows from a request.
pub enum Change {
    /// Start the model in this place.
    Start(usize, ProcessSpec),
    /// Start the model in this place later, when there is room.
    Prepare(usize, ProcessSpec),
    /// End the one in this place.
    End(usize),
}
