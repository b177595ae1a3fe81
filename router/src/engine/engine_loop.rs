//! The task that drives the scheduler: it passes commands and outcomes to it, sends its plans to the shards and its events to
//! the listeners. It owns the scheduler, the engine and the listeners, and makes no decisions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use penstock_scheduler::{
    Event, EventKind, Failure, MAX_PLANS_IN_FLIGHT, Mismatch, Outcome, RequestId, Scheduler, SchedulerConfig,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::{debug, error, info, warn};

use crate::engine::generation::{Command, EngineHandle, EngineStatus, Pulse};
use crate::engine::{Engine, EngineError};
use crate::observe::observer::{Levels, Observer, StepSummary};
use crate::observe::telemetry::{AnsweredStep, SequenceTraces};

/// How often deadlines in the queue are looked at when nothing else happens.
const TICK: Duration = Duration::from_millis(50);

/// How often shards that are lost are tried again.
const RETRY: Duration = Duration::from_millis(50);

/// Starts the loop and returns the handle to it. The loop ends when every handle and generation is dropped, or when
/// the shards are lost for good. When they are lost for a while, requests are kept, and go on where they were.
pub fn spawn(engine: Box<dyn Engine>, config: SchedulerConfig, observer: impl Observer) -> EngineHandle {
    let (commands_tx, commands) = mpsc::unbounded_channel();
    let (status_tx, status) = watch::channel(EngineStatus::Ready);
    let facts = Arc::new(engine.facts().clone());
    let pulse = Arc::new(Pulse::new());
    let engine_loop = EngineLoop {
        link: Link::Up(engine),
        scheduler: Scheduler::new(config),
        observer: Box::new(observer),
        status: status_tx.clone(),
        pulse: Arc::clone(&pulse),
        listeners: HashMap::new(),
        traces: SequenceTraces::default(),
        started: Instant::now(),
        in_flight: 0,
        is_checked: true,
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

/// The way to the shards.
enum Link {
    /// The shards answer.
    Up(Box<dyn Engine>),
    /// The shards are lost; attempts to reach them continue.
    Down(BoxFuture<'static, Reconnected>),
}

/// The engine, and whether it can be used again.
type Reconnected = (Box<dyn Engine>, Result<(), EngineError>);

/// What came over the link.
enum Arrival {
    Outcome(Result<Outcome, EngineError>),
    Reconnected(Reconnected),
}

impl Link {
    /// Cancel safe.
    async fn next(&mut self) -> Arrival {
        match self {
            Self::Up(engine) => Arrival::Outcome(engine.recv().await),
            Self::Down(attempts) => Arrival::Reconnected(attempts.await),
        }
    }

    /// Up becomes down.
    fn go_down(&mut self) {
        let link = std::mem::replace(self, Self::Down(Box::pin(std::future::pending())));
        *self = match link {
            Self::Up(engine) => Self::Down(Box::pin(reconnect(engine))),
            Self::Down(attempts) => Self::Down(attempts),
        };
    }
}

/// Tries until the shards are back, or are others than they were.
async fn reconnect(mut engine: Box<dyn Engine>) -> Reconnected {
    loop {
        match engine.reconnect().await {
            Ok(()) => return (engine, Ok(())),
            Err(error @ EngineError::Changed(_)) => return (engine, Err(error)),
            Err(error) => debug!(%error, "the shards are not back yet"),
        }
        sleep(RETRY).await;
    }
}

struct EngineLoop {
    link: Link,
    status: watch::Sender<EngineStatus>,
    pulse: Arc<Pulse>,
    scheduler: Scheduler,
    observer: Box<dyn Observer>,
    listeners: HashMap<RequestId, mpsc::Sender<EventKind>>,
    traces: SequenceTraces,
    started: Instant,
    in_flight: usize,
    /// Whether the scheduler's accounts were checked since the last command.
    is_checked: bool,
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
                arrival = self.link.next() => self.on_arrival(arrival),
                _ = ticks.tick() => { self.on_tick(); Ok(()) }
            };
            // Commands that are already here go into the same plan.
            while let Ok(command) = commands.try_recv() {
                self.on_command(command);
            }
            self.pulse.beat();
            let expired = self.scheduler.expire(self.started.elapsed());
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
        self.check_if_idle();
        self.tell_levels();
    }

    /// Once after every busy spell: no block may have leaked, none may have two owners.
    fn check_if_idle(&mut self) {
        if !self.is_checked && self.scheduler.is_idle() {
            self.scheduler.check();
            self.is_checked = true;
        }
    }

    fn on_command(&mut self, command: Command) {
        self.is_checked = false;
        match command {
            Command::Submit { request, events, trace, reply } => {
                let accepted = self.scheduler.on_request(*request, self.started.elapsed());
                let id = accepted.as_ref().ok().copied();
                match (id, reply.send(accepted)) {
                    (Some(id), Ok(())) => {
                        self.listeners.insert(id, events);
                        self.traces.begin(id, trace);
                    }
                    // The client left while it was being accepted.
                    (Some(id), Err(_)) => self.scheduler.on_cancel(id),
                    (None, _) => {}
                }
            }
            Command::Cancel(id) => {
                self.listeners.remove(&id);
                self.traces.end(id);
                self.scheduler.on_cancel(id);
            }
        }
    }

    fn on_arrival(&mut self, arrival: Arrival) -> Result<(), EngineError> {
        match arrival {
            Arrival::Outcome(outcome) => self.on_outcome(outcome?),
            Arrival::Reconnected((engine, reconnected)) => {
                reconnected?;
                info!("the shards are back");
                self.link = Link::Up(engine);
                self.observer.on_reconnected();
                self.status.send_replace(EngineStatus::Ready);
                Ok(())
            }
        }
    }

    fn on_outcome(&mut self, outcome: Outcome) -> Result<(), EngineError> {
        let (timings, num_sampled) = (outcome.timings, outcome.sampled.len());
        let size = self.scheduler.next_answered();
        let answered = AnsweredStep { step: outcome.step, size, timings };
        self.traces.on_step(&answered, self.scheduler.parts_answered_next());
        let mismatch = |error: Mismatch| EngineError::Protocol { rank: 0, reason: error.to_string() };
        let events = self.scheduler.on_outcome(outcome).map_err(mismatch)?;
        self.in_flight -= 1;
        self.publish(events);
        self.observer.on_step(&StepSummary { size, num_sampled, timings });
        self.tell_levels();
        Ok(())
    }

    fn tell_levels(&mut self) {
        let levels = Levels { load: self.scheduler.load(), totals: self.scheduler.totals() };
        self.observer.on_levels(&levels);
    }

    /// Keeps the shards supplied: plan N+1 goes out before outcome N is back.
    fn send_plans(&mut self) -> Result<(), EngineError> {
        while let Link::Up(engine) = &mut self.link
            && self.in_flight < MAX_PLANS_IN_FLIGHT
        {
            let Some((plan, events)) = self.scheduler.plan(self.started.elapsed()) else { break };
            let sent = engine.send(&plan);
            self.in_flight += 1;
            self.publish(events);
            sent?;
        }
        Ok(())
    }

    /// Requests are kept, but for those that are given up, and go on when the shards are back.
    fn lose_shards(&mut self, error: &EngineError) {
        warn!(reason = %error, "the shards are lost; waiting for them");
        self.status.send_replace(EngineStatus::Restarting(error.to_string()));
        let unanswered = (self.in_flight > 0).then(|| self.scheduler.next_answered());
        self.observer.on_lost(unanswered);
        self.link.go_down();
        self.in_flight = 0;
        let events = self.scheduler.on_engine_lost();
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
                self.scheduler.on_cancel(id);
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
