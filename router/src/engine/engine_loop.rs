//! The task that drives the replicas: it passes them commands and outcomes, and their events to the listeners. It owns the
//! replicas and the listeners, and makes no decisions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_scheduler::{Event, EventKind, Failure, Outcome, Refused, RequestId, SchedulerConfig};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, error, info, warn};

use crate::engine::arrivals::{Arrivals, Gathering};
use crate::engine::changes::{Change, Changes};
use crate::engine::condition::Wanted;
use crate::engine::generation::{Command, EngineHandle, EngineStatus, Pulse, ReplicaStatus};
use crate::engine::link::Arrival;
use crate::engine::replica::{Answered, Replica};
use crate::engine::replicas::Replicas;
use crate::engine::roster::Departed;
use crate::engine::transfers::{Transferred, Transfers};
use crate::engine::{Engine, EngineError};
use crate::observe::observer::{Observer, TransferSummary};
use crate::observe::telemetry::SequenceTraces;

/// How often deadlines in the queue are looked at when nothing else happens.
const TICK: Duration = Duration::from_millis(50);

/// Starts the loop and returns the handle to it. Each engine is a replica of the model. The loop ends when every handle and
/// generation is dropped, or when the shards of all replicas are lost for good. When some are lost for a while, requests
/// are kept, and go on where they were, with another replica if there is one.
/// `wanted`: what the shards are to be like, as the engines know it.
pub fn spawn(
    engines: Vec<Box<dyn Engine>>,
    config: &SchedulerConfig,
    wanted: Wanted,
    observer: impl Observer,
) -> EngineHandle {
    let (commands_tx, commands) = mpsc::unbounded_channel();
    let facts = engines.iter().find(|engine| engine.is_connected()).or(engines.first());
    let facts = Arc::new(facts.expect("a server has a replica").facts().clone());
    let replicas = Replicas::new(engines, config);
    let (status_tx, status) = watch::channel(replicas.statuses());
    let pulse = Arc::new(Pulse::new());
    let arrivals = Arrivals::new();
    let engine_loop = EngineLoop {
        replicas,
        transfers: Transfers::default(),
        observer: Box::new(observer),
        status: status_tx.clone(),
        pulse: Arc::clone(&pulse),
        listeners: HashMap::new(),
        traces: SequenceTraces::default(),
        changes: Changes::new(wanted.clone()),
        gathering: Gathering::new(arrivals.clone()),
        started: Instant::now(),
    };
    let running = tokio::spawn(engine_loop.run(commands));
    tokio::spawn(async move {
        let lost = match running.await {
            Ok(Ok(())) => "the engine loop has ended".to_owned(),
            Ok(Err(lost)) => lost,
            // The panic is in the log already; whoever serves ends the process.
            Err(panic) => format!("the engine loop failed: {panic}"),
        };
        let lost = EngineStatus::Lost(lost);
        status_tx.send_modify(|all| all.iter_mut().for_each(|one| one.status = lost.clone()));
    });
    EngineHandle { commands: commands_tx, status, facts, pulse, wanted, arrivals }
}

struct EngineLoop {
    replicas: Replicas,
    transfers: Transfers,
    status: watch::Sender<Vec<ReplicaStatus>>,
    pulse: Arc<Pulse>,
    observer: Box<dyn Observer>,
    listeners: HashMap<RequestId, mpsc::Sender<EventKind>>,
    traces: SequenceTraces,
    changes: Changes,
    gathering: Gathering,
    started: Instant,
}

impl EngineLoop {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) -> Result<(), String> {
        self.tell_condition();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let turn = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => { self.on_command(command); Ok(()) }
                    None => return Ok(()),
                },
                (from, arrival) = self.replicas.next() => self.on_arrival(from, arrival).map_err(|error| (from, error)),
                done = self.transfers.next() => { self.on_transferred(&done); Ok(()) }
                () = self.gathering.end() => Ok(()),
                _ = ticks.tick() => { self.on_tick(); Ok(()) }
            };
            // Commands that are already here go into the same plan.
            while let Ok(command) = commands.try_recv() {
                self.on_command(command);
            }
            self.pulse.beat();
            let expired = self.replicas.expire(self.started.elapsed());
            self.publish(expired);
            if let Err((replica, error)) = turn {
                self.lose_shards(replica, &error);
            }
            self.relieve();
            self.change();
            self.pass_on();
            self.send_all_plans();
            if self.replicas.even_out() {
                self.pass_on();
                self.send_all_plans();
            }
            self.tell_cache_events();
            if let Some(lost) = self.replicas.lost().map(str::to_owned) {
                return Err(self.fail_all(lost, commands));
            }
        }
    }

    fn on_tick(&mut self) {
        self.replicas.iter_mut().for_each(Replica::check_if_idle);
        let has_waiting = self.replicas.iter_mut().any(|replica| replica.num_waiting() > 0);
        if has_waiting && self.changes.is_to_wake_again(self.started.elapsed()) {
            self.changes.ask(Change::WakeUp, None);
        }
        self.tell_levels();
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Submit { reply, .. } if self.changes.wanted.refuses_requests() => {
                // The client may have left.
                let _ = reply.send(Err(Refused::Asleep));
            }
            Command::Submit { request, events, trace, arriving, reply } => {
                drop(arriving);
                let accepted = self.replicas.submit(*request, self.started.elapsed());
                let id = accepted.as_ref().ok().copied();
                match (id, reply.send(accepted)) {
                    (Some(id), Ok(())) => {
                        self.listeners.insert(id, events);
                        self.traces.begin(id, trace);
                        if self.changes.wanted.is_asleep() {
                            self.changes.ask(Change::WakeUp, None);
                        }
                    }
                    // The client left while it was being accepted.
                    (Some(id), Err(_)) => self.replicas.cancel(id),
                    (None, _) => {}
                }
            }
            Command::Cancel(id) => {
                self.listeners.remove(&id);
                self.traces.end(id);
                self.replicas.cancel(id);
            }
            Command::Change(change, reply) => self.changes.ask(change, reply),
            Command::RefuseDeferred => self.changes.refuse_deferred(),
            Command::AbortBegun => {
                let aborted = self.replicas.abort_begun();
                self.publish(aborted);
            }
            Command::Members(members) => {
                self.replicas.on_members(members, self.started.elapsed());
                let failed = self.replicas.move_on();
                self.publish(failed);
                self.tell_status();
            }
        }
    }

    /// Passes requests whose prompt is computed on to other replicas, if the roles of the replicas ask for that.
    fn pass_on(&mut self) {
        let passed = self.replicas.pass_on();
        passed.begun.into_iter().for_each(|begun| self.transfers.begin(begun));
        self.publish(passed.events);
    }

    fn on_transferred(&mut self, done: &Transferred) {
        self.replicas.on_transferred(done);
        let Transferred { num_blocks, took, .. } = *done;
        self.observer.on_transfer(&TransferSummary {
            num_blocks,
            num_bytes: done.result.as_ref().copied().unwrap_or_default(),
            took,
            is_copied: done.result.is_ok(),
        });
    }

    /// Shards that are not what is wanted of them become so.
    fn change(&mut self) {
        let (began, events) = self.replicas.change(&self.changes.wanted.get());
        self.publish(events);
        if began {
            self.tell_status();
        }
        if !self.replicas.are_changing() && self.changes.settle() {
            self.tell_condition();
        }
    }

    fn tell_condition(&mut self) {
        let condition = self.changes.wanted.get();
        let (sleep_level, weights) = (condition.sleep_level(), condition.weights_number());
        info!(sleep_level, weights, "the shards are like this");
        self.observer.on_condition(sleep_level, weights);
    }

    /// Drained replicas give their requests to others, and leave if they are to.
    fn relieve(&mut self) {
        let stopped = self.replicas.relieve(self.started.elapsed());
        self.publish(stopped);
        if let Some(Departed { totals, replicas }) = self.replicas.let_go() {
            self.observer.on_departed(totals, &replicas);
            self.tell_status();
        }
    }

    fn on_arrival(&mut self, from: usize, arrival: Arrival) -> Result<(), EngineError> {
        match arrival {
            Arrival::Outcome(outcome) => self.on_outcome(from, outcome?),
            Arrival::Reconnected((engine, Err(EngineError::Refused { rank, reason }))) => {
                warn!(replica = from, rank, reason, "a shard does not become what is wanted of it");
                self.changes.take_back(&reason, self.started.elapsed());
                self.replicas.get(from).stay(engine);
                Ok(())
            }
            Arrival::Reconnected((engine, reconnected)) => {
                reconnected?;
                self.on_reconnected(from, engine);
                Ok(())
            }
        }
    }

    fn on_reconnected(&mut self, replica: usize, engine: Box<dyn Engine>) {
        let had_lost = !self.replicas.get(replica).is_changing();
        let was_connected = self.replicas.get(replica).come_back(engine);
        info!(replica, "the shards are connected");
        if was_connected && had_lost {
            self.observer.on_reconnected();
        }
        let failed = self.replicas.move_on();
        self.publish(failed);
        self.tell_status();
    }

    fn on_outcome(&mut self, from: usize, outcome: Outcome) -> Result<(), EngineError> {
        let Answered { summary, events } = self.replicas.get(from).answer(outcome, &mut self.traces)?;
        self.publish(events);
        self.observer.on_step(&summary);
        self.tell_levels();
        Ok(())
    }

    fn tell_cache_events(&mut self) {
        for replica in self.replicas.iter_mut() {
            let events = replica.take_cache_events();
            if !events.is_empty() {
                self.observer.on_cache_events(replica.number(), events);
            }
        }
    }

    fn tell_levels(&mut self) {
        self.observer.on_levels(&self.replicas.levels());
    }

    fn tell_status(&mut self) {
        self.status.send_replace(self.replicas.statuses());
        self.tell_levels();
    }

    fn send_all_plans(&mut self) {
        if self.changes.are_replacing() {
            return;
        }
        let first_step = self.replicas.iter_mut().filter_map(|replica| replica.first_step_time()).max();
        let waits = self.gathering.waits(first_step);
        for replica in 0..self.replicas.len() {
            if waits && self.replicas.get(replica).first_step_time().is_some() {
                continue;
            }
            if let Err(error) = self.send_plans(replica) {
                self.lose_shards(replica, &error);
            }
        }
    }

    /// Keeps the shards of a replica supplied: plan N+1 goes out before outcome N is back.
    fn send_plans(&mut self, replica: usize) -> Result<(), EngineError> {
        while let Some((sent, events)) = self.replicas.get(replica).send_plan(self.started.elapsed()) {
            self.publish(events);
            sent?;
        }
        Ok(())
    }

    /// Requests are kept, but for those that are given up. They go on with another replica, or when the shards are back.
    fn lose_shards(&mut self, replica: usize, error: &EngineError) {
        let lost = self.replicas.get(replica);
        let number = lost.number();
        if error.is_final() {
            error!(replica, reason = %error, "the shards are lost for good");
            lost.lose_for_good(error);
        } else {
            warn!(replica, reason = %error, "the shards are lost; waiting for them");
            let (unanswered, events) = lost.go_down(error);
            self.observer.on_lost(unanswered);
            self.publish(events);
        }
        for (transfer, from) in self.transfers.lost(number) {
            self.replicas.give_up(transfer, from);
        }
        let failed = self.replicas.move_on();
        self.publish(failed);
        self.tell_status();
    }

    fn publish(&mut self, events: Vec<Event>) {
        for event in events {
            self.traces.on_event(&event);
            let Event { id, mut kind } = event;
            let Some(listener) = self.listeners.get(&id).filter(|_| kind.is_for_client()) else { continue };
            // One place in the channel is kept free for the final event.
            if listener.capacity() <= 1 && !kind.is_final() {
                kind = EventKind::Failed(Failure::SlowReader { limit: listener.max_capacity() });
                self.replicas.cancel(id);
            }
            let is_final = kind.is_final();
            // A listener that is gone has sent a cancel, which is on its way.
            let _ = listener.try_send(kind);
            if is_final {
                self.listeners.remove(&id);
                self.traces.end(id);
            }
        }
    }

    /// The shards are lost for good: every request, also those still waiting in the channel, gets one final error.
    fn fail_all(&mut self, lost: String, mut commands: mpsc::UnboundedReceiver<Command>) -> String {
        error!(reason = %lost, "the shards are lost for good");
        commands.close();
        while let Ok(command) = commands.try_recv() {
            self.on_command(command);
        }
        for (id, listener) in self.listeners.drain() {
            debug!(sequence = id.0, "failed with the shards");
            let _ = listener.try_send(EventKind::Failed(Failure::EngineLost(lost.clone())));
        }
        lost
    }
}
