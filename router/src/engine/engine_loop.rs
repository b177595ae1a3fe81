//! The task that drives a replica: it passes commands to its scheduler and outcomes from its shards, and events to the
//! listeners. It owns the replica and the listeners, and makes no decisions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_scheduler::{Event, EventKind, Failure, Outcome, RequestId, SchedulerConfig};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, error, info, warn};

use crate::engine::generation::{Command, EngineHandle, EngineStatus, Pulse};
use crate::engine::link::Arrival;
use crate::engine::replica::{Answered, Replica};
use crate::engine::{Engine, EngineError};
use crate::observe::observer::Observer;
use crate::observe::telemetry::SequenceTraces;

/// How often deadlines in the queue are looked at when nothing else happens.
const TICK: Duration = Duration::from_millis(50);

/// Starts the loop and returns the handle to it. The loop ends when every handle and generation is dropped, or when
/// the shards are lost for good. When they are lost for a while, requests are kept, and go on where they were.
pub fn spawn(engine: Box<dyn Engine>, config: SchedulerConfig, observer: impl Observer) -> EngineHandle {
    let (commands_tx, commands) = mpsc::unbounded_channel();
    let (status_tx, status) = watch::channel(EngineStatus::Ready);
    let facts = Arc::new(engine.facts().clone());
    let pulse = Arc::new(Pulse::new());
    let engine_loop = EngineLoop {
        replica: Replica::new(engine, config),
        observer: Box::new(observer),
        status: status_tx.clone(),
        pulse: Arc::clone(&pulse),
        listeners: HashMap::new(),
        traces: SequenceTraces::default(),
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
        // Nobody may be left to hear it.
        let _ = status_tx.send(EngineStatus::Lost(lost));
    });
    EngineHandle { commands: commands_tx, status, facts, pulse }
}

struct EngineLoop {
    replica: Replica,
    status: watch::Sender<EngineStatus>,
    pulse: Arc<Pulse>,
    observer: Box<dyn Observer>,
    listeners: HashMap<RequestId, mpsc::Sender<EventKind>>,
    traces: SequenceTraces,
    started: Instant,
}

impl EngineLoop {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) -> Result<(), String> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let turn = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => { self.on_command(command); Ok(()) }
                    None => return Ok(()),
                },
                arrival = self.replica.next() => self.on_arrival(arrival),
                _ = ticks.tick() => { self.on_tick(); Ok(()) }
            };
            // Commands that are already here go into the same plan.
            while let Ok(command) = commands.try_recv() {
                self.on_command(command);
            }
            self.pulse.beat();
            let expired = self.replica.expire(self.started.elapsed());
            self.publish(expired);
            match turn.and_then(|()| self.send_plans()) {
                Ok(()) => {}
                Err(error @ EngineError::Changed(_)) => {
                    return Err(self.fail_all(error.to_string(), commands));
                }
                Err(error) => self.lose_shards(&error),
            }
        }
    }

    fn on_tick(&mut self) {
        self.replica.check_if_idle();
        self.tell_levels();
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Submit { request, events, trace, reply } => {
                let accepted = self.replica.submit(*request, self.started.elapsed());
                let id = accepted.as_ref().ok().copied();
                match (id, reply.send(accepted)) {
                    (Some(id), Ok(())) => {
                        self.listeners.insert(id, events);
                        self.traces.begin(id, trace);
                    }
                    // The client left while it was being accepted.
                    (Some(id), Err(_)) => self.replica.cancel(id),
                    (None, _) => {}
                }
            }
            Command::Cancel(id) => {
                self.listeners.remove(&id);
                self.traces.end(id);
                self.replica.cancel(id);
            }
        }
    }

    fn on_arrival(&mut self, arrival: Arrival) -> Result<(), EngineError> {
        match arrival {
            Arrival::Outcome(outcome) => self.on_outcome(outcome?),
            Arrival::Reconnected((engine, reconnected)) => {
                reconnected?;
                info!("the shards are back");
                self.replica.come_back(engine);
                self.observer.on_reconnected();
                self.status.send_replace(EngineStatus::Ready);
                Ok(())
            }
        }
    }

    fn on_outcome(&mut self, outcome: Outcome) -> Result<(), EngineError> {
        let Answered { summary, events } = self.replica.answer(outcome, &mut self.traces)?;
        self.publish(events);
        self.observer.on_step(&summary);
        self.tell_levels();
        Ok(())
    }

    fn tell_levels(&mut self) {
        self.observer.on_levels(&self.replica.levels());
    }

    /// Keeps the shards supplied: plan N+1 goes out before outcome N is back.
    fn send_plans(&mut self) -> Result<(), EngineError> {
        while let Some((sent, events)) = self.replica.send_plan(self.started.elapsed()) {
            self.publish(events);
            sent?;
        }
        Ok(())
    }

    /// Requests are kept, but for those that are given up, and go on when the shards are back.
    fn lose_shards(&mut self, error: &EngineError) {
        warn!(reason = %error, "the shards are lost; waiting for them");
        self.status.send_replace(EngineStatus::Restarting(error.to_string()));
        let (unanswered, events) = self.replica.go_down();
        self.observer.on_lost(unanswered);
        self.publish(events);
    }

    fn publish(&mut self, events: Vec<Event>) {
        for event in events {
            self.traces.on_event(&event);
            let Event { id, mut kind } = event;
            let Some(listener) = self.listeners.get(&id).filter(|_| kind.is_for_client()) else { continue };
            // One place in the channel is kept free for the final event.
            if listener.capacity() <= 1 && !kind.is_final() {
                kind = EventKind::Failed(Failure::SlowReader { limit: listener.max_capacity() });
                self.replica.cancel(id);
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
