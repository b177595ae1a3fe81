//! Pure state machine: events → actions. It decides the order of starting and stopping, which processes are restarted
//! together, and after how many restarts everything stops. It handles no process and no signal, and the time is an
//! argument. `runner` is the loop around it.
//!
//! ```text
//! Starting ──shards ready, then router ready──► Serving ──stop──► Draining ──router gone──► Stopping ──► Ended
//!    └──── failure, or asked to stop ─────────────┴── too many restarts ──┴──────────────────▲
//! ```
//!
//! A server has a group of shards for each replica of the model. The router is started when the first group is ready. A
//! launcher of several models has a group of one process for each model, and a proxy in the place of the router, which is
//! started when all of them are ready; there, groups may be added later, and one that fails before it was ready is dropped. In the
//! phase Serving, a shard that ends or hangs has its whole group killed and started again; other groups go on. A router that
//! ends or hangs is started again alone. A group that fails too often is left down for as long as there is another.

mod blame;
mod messages;
mod restarts;
mod supervised;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_blame;
#[cfg(test)]
mod tests_of_models;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

pub use messages::{
    Action, BLAME_DELAY, Consequence, Ending, Event, Exit, Part, ProcessId, Report, Timeouts, Timer,
    WRONG_USAGE,
};
pub use restarts::RestartLimit;

use messages::{KILL_TIMEOUT, ROUTER_TIMEOUT, STOP_TIMEOUT, set, timer};
use supervised::{LIVE, State, Supervised};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Starting,
    Serving,
    Draining,
    Stopping,
}

/// The state machine.
#[derive(Debug)]
pub struct Supervisor {
    timeouts: Timeouts,
    limit: RestartLimit,
    num_shards: usize,
    /// Whether the router waits for all groups, and not for one.
    waits_for_all: bool,
    phase: Phase,
    ending: Ending,
    groups: Vec<Supervised>,
    /// Groups that are started when those before them are ready.
    queued: VecDeque<Vec<usize>>,
    router: Supervised,
    alive: BTreeSet<ProcessId>,
    waiting: BTreeSet<ProcessId>,
    now: Duration,
}

impl Supervisor {
    /// The state machine of so many groups of so many shards, and its first actions. Groups of `elsewhere` need other
    /// machines: [`Event::NodesComplete`] has to follow for each.
    pub fn start(
        (num_groups, num_shards): (usize, usize),
        elsewhere: &[usize],
        timeouts: Timeouts,
        limit: RestartLimit,
    ) -> (Self, Vec<Action>) {
        let mut supervisor = Self::new((num_groups, num_shards), timeouts, limit);
        elsewhere.iter().for_each(|group| supervisor.groups[*group].has_nodes = false);
        let actions = (0..num_groups).flat_map(|group| supervisor.start_part(Part::Group(group))).collect();
        (supervisor, actions)
    }

    fn new((num_groups, num_shards): (usize, usize), timeouts: Timeouts, limit: RestartLimit) -> Self {
        let supervised = || Supervised::new(limit);
        Self {
            timeouts,
            limit,
            num_shards,
            waits_for_all: false,
            phase: Phase::Starting,
            ending: Ending::Stopped,
            groups: (0..num_groups).map(|_| supervised()).collect(),
            queued: VecDeque::new(),
            router: supervised(),
            alive: BTreeSet::new(),
            waiting: BTreeSet::new(),
            now: Duration::ZERO,
        }
    }

    /// The state machine of these models, each a group of one process, and of room for so many more. Those side by side in
    /// `order` start together, when those before them are ready.
    pub fn start_models(
        (order, num_spare): (Vec<Vec<usize>>, usize),
        timeouts: Timeouts,
        limit: RestartLimit,
    ) -> (Self, Vec<Action>) {
        let num_models = order.iter().map(Vec::len).sum();
        let mut supervisor = Self::new((num_models, 1), timeouts, limit);
        supervisor.waits_for_all = true;
        let spare = || Supervised { is_removed: true, ..Supervised::new(limit) };
        supervisor.groups.extend((0..num_spare).map(|_| spare()));
        supervisor.queued = order.into();
        let first = supervisor.start_queued();
        (supervisor, first)
    }

    fn start_queued(&mut self) -> Vec<Action> {
        let next = self.queued.pop_front().unwrap_or_default();
        next.into_iter().flat_map(|group| self.start_part(Part::Group(group))).collect()
    }

    /// The actions that follow from an event. `now` is the time since the start and never decreases.
    pub fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        self.now = now;
        let mut actions = self.handle(event);
        if self.phase == Phase::Stopping && self.alive.is_empty() {
            actions.push(Action::End(self.ending));
        }
        actions
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Ready(id) => self.on_ready(id),
            Event::Exited(id, exit) => self.on_exited(id, exit),
            Event::Hung(id, reason) => self.on_hung(id, reason),
            Event::ShardsFailed(group, reason) => self.on_shards_failed(group, reason),
            Event::ShardsBack(group) => self.on_shards_back(group),
            Event::Added(group) => self.on_added(group),
            Event::Removed(group) | Event::Ended(group) => self.on_removed(group),
            Event::Serves(_) | Event::Awake(_) | Event::Room(_) => Vec::new(),
            Event::NodesComplete(group) => self.on_nodes_complete(group),
            Event::NodeLost(group) => {
                self.groups[group].has_nodes = false;
                Vec::new()
            }
            Event::StopRequested => self.on_stop_requested(),
            Event::TimeUp(Timer::Group(group)) => self.on_part_time_up(Part::Group(group)),
            Event::TimeUp(Timer::Router) => self.on_part_time_up(Part::Router),
            Event::TimeUp(Timer::Blame(group)) => self.on_blame_time_up(group),
            Event::TimeUp(Timer::Stop) => self.on_stop_time_up(),
        }
    }

    fn part(&mut self, part: Part) -> &mut Supervised {
        match part {
            Part::Group(group) => &mut self.groups[group],
            Part::Router => &mut self.router,
        }
    }

    fn members(&self, part: Part) -> Vec<ProcessId> {
        match part {
            Part::Group(group) => (0..self.num_shards).map(|rank| ProcessId::Shard { group, rank }).collect(),
            Part::Router => vec![ProcessId::Router],
        }
    }

    fn alive_members(&self, part: Part) -> Vec<ProcessId> {
        self.members(part).into_iter().filter(|id| self.alive.contains(id)).collect()
    }

    fn start_part(&mut self, part: Part) -> Vec<Action> {
        match part {
            Part::Group(group) if !self.groups[group].has_nodes => return self.await_nodes(group),
            _ => {}
        }
        let members = self.members(part);
        let starting = self.part(part);
        (starting.state, starting.is_taken, starting.blame) = (State::Starting, false, None);
        self.alive.extend(&members);
        self.waiting.extend(&members);
        let timeout = if part == Part::Router { ROUTER_TIMEOUT } else { self.timeouts.startup };
        let starts = members.into_iter().map(Action::Start);
        starts.chain([Action::SetTimer(timer(part), timeout)]).collect()
    }

    /// The first time there is a limit; later somebody has to bring the machine back, whenever that is.
    fn await_nodes(&mut self, group: usize) -> Vec<Action> {
        self.groups[group].state = State::AwaitingNodes;
        let limit = match self.phase {
            Phase::Starting => set(Timer::Group(group), self.timeouts.startup),
            _ => Action::ClearTimer(Timer::Group(group)),
        };
        vec![Action::Report(Report::AwaitingNodes(group)), limit]
    }

    fn on_nodes_complete(&mut self, group: usize) -> Vec<Action> {
        self.groups[group].has_nodes = true;
        if self.phase == Phase::Stopping || self.groups[group].state != State::AwaitingNodes {
            return Vec::new();
        }
        self.start_part(Part::Group(group))
    }

    fn on_ready(&mut self, id: ProcessId) -> Vec<Action> {
        self.waiting.remove(&id);
        let part = id.part();
        let is_complete = self.members(part).iter().all(|member| !self.waiting.contains(member));
        if self.phase == Phase::Stopping || self.part(part).state != State::Starting || !is_complete {
            return Vec::new();
        }
        let now = self.now;
        let report = self.report_up(part);
        self.part(part).state = State::Up;
        self.part(part).was_up = true;
        self.part(part).restarts.on_up(now);
        let mut actions = vec![Action::ClearTimer(timer(part)), Action::Report(report)];
        if part == Part::Router && self.phase == Phase::Starting {
            self.phase = Phase::Serving;
        }
        let is_starting = self.phase == Phase::Starting && self.waits_for_all;
        let mut waits = is_starting && self.has_group_in(&[State::Starting]);
        if is_starting && !waits {
            let next = self.start_queued();
            waits = !next.is_empty();
            actions.extend(next);
        }
        if part != Part::Router && self.router.state == State::Down && self.phase != Phase::Draining && !waits
        {
            actions.extend(self.start_part(Part::Router));
        }
        actions
    }

    /// Starts a group in a place that is free. While the server ends there is none.
    fn on_added(&mut self, group: usize) -> Vec<Action> {
        let is_free = self.groups.get(group).is_some_and(|it| it.is_removed && it.state == State::Down);
        if !is_free || self.phase != Phase::Serving {
            return vec![Action::Report(Report::Removed(group))];
        }
        self.groups[group] = Supervised { is_added: true, ..Supervised::new(self.limit) };
        self.start_part(Part::Group(group))
    }

    /// The reaction to the failure of a part that is not to end.
    fn consequence(&self, part: Part) -> Consequence {
        match part {
            Part::Group(group) if self.groups[group].is_trial() => Consequence::Drop,
            _ => Consequence::Restart,
        }
    }

    fn report_up(&mut self, part: Part) -> Report {
        match (self.part(part).was_up, part) {
            (false, Part::Group(group)) => Report::Loaded(group),
            (false, Part::Router) => Report::Serving,
            (true, _) => Report::Recovered(part),
        }
    }

    /// Whether such a group is there to stay: one that was added may never get ready.
    fn has_group_in(&self, states: &[State]) -> bool {
        let counts = |group: &&Supervised| !group.is_removed && !group.is_trial();
        self.groups.iter().filter(counts).any(|group| states.contains(&group.state))
    }

    /// Ends a group that nobody needs, unless it is the last one: with none no router could be started again.
    fn on_removed(&mut self, group: usize) -> Vec<Action> {
        let is_known = self.groups.get(group).is_some_and(|group| !group.is_removed);
        if !is_known || self.phase == Phase::Stopping {
            return Vec::new();
        }
        self.groups[group].is_removed = true;
        if !self.has_group_in(&LIVE) {
            self.groups[group].is_removed = false;
            return Vec::new();
        }
        match self.groups[group].state {
            State::Starting | State::Up => self.end_group(group),
            State::Down | State::BackingOff | State::AwaitingNodes => self.on_group_gone(group),
            State::Killing | State::Leaving => Vec::new(),
        }
    }

    fn end_group(&mut self, group: usize) -> Vec<Action> {
        self.groups[group].state = State::Leaving;
        let ends = self.alive_members(Part::Group(group)).into_iter().map(Action::Terminate);
        ends.chain([set(Timer::Group(group), STOP_TIMEOUT)]).collect()
    }

    fn on_group_gone(&mut self, group: usize) -> Vec<Action> {
        self.groups[group].state = State::Down;
        vec![Action::ClearTimer(Timer::Group(group)), Action::Report(Report::Removed(group))]
    }

    fn on_exited(&mut self, id: ProcessId, exit: Exit) -> Vec<Action> {
        self.alive.remove(&id);
        self.waiting.remove(&id);
        match (self.phase, id) {
            (Phase::Stopping, _) => Vec::new(),
            // With a machine its shards are gone, and nothing is wrong with them.
            (Phase::Starting, ProcessId::Shard { group, .. }) if !self.groups[group].has_nodes => {
                self.on_unexpected_exit(id, exit)
            }
            (Phase::Starting, _) => self.end(exit.of_start(), Report::Died(id, exit, Consequence::End)),
            (Phase::Draining, ProcessId::Router) if exit.is_good() || self.is_aborting() => self.stop_all(),
            (Phase::Draining, ProcessId::Router) => self.fail(Report::Died(id, exit, Consequence::End)),
            (Phase::Serving | Phase::Draining, _) => self.on_unexpected_exit(id, exit),
        }
    }

    fn on_hung(&mut self, id: ProcessId, reason: String) -> Vec<Action> {
        let part = id.part();
        match (self.phase, self.part(part).state) {
            (Phase::Stopping, _) => Vec::new(),
            (_, state) if ![State::Starting, State::Up].contains(&state) => Vec::new(),
            (Phase::Starting, _) => self.fail(Report::Hung(id, reason, Consequence::End)),
            _ => self.fail_part(part, Report::Hung(id, reason, self.consequence(part))),
        }
    }

    /// A process ended that should be running.
    fn on_unexpected_exit(&mut self, id: ProcessId, exit: Exit) -> Vec<Action> {
        let part = id.part();
        let mut actions = match self.part(part).state {
            State::Starting | State::Up => {
                self.fail_part(part, Report::Died(id, exit, self.consequence(part)))
            }
            State::Down | State::Killing | State::Leaving | State::BackingOff | State::AwaitingNodes => {
                Vec::new()
            }
        };
        let is_ending = [State::Killing, State::Leaving].contains(&self.part(part).state);
        if is_ending && self.alive_members(part).is_empty() {
            actions.extend(match part {
                Part::Group(group) if self.groups[group].is_removed || self.groups[group].is_trial() => {
                    self.groups[group].is_removed = true;
                    self.on_group_gone(group)
                }
                _ => self.restart(part),
            });
        }
        actions
    }

    /// Kills the rest of a part that failed. The rest is of no use: collectives of other ranks hang, and slots are lost.
    fn fail_part(&mut self, part: Part, report: Report) -> Vec<Action> {
        self.part(part).state = State::Killing;
        let kills = self.alive_members(part).into_iter().map(Action::Kill);
        [Action::Report(report)].into_iter().chain(kills).chain([set(timer(part), KILL_TIMEOUT)]).collect()
    }

    /// Starts a part again whose processes have all ended: at once, after a delay, or never if it failed too often.
    fn restart(&mut self, part: Part) -> Vec<Action> {
        // A router cannot start without shards, so this does not count as a failure of the router.
        if part == Part::Router && !self.has_group_in(&[State::Up]) {
            self.router.state = State::Down;
            return vec![Action::ClearTimer(Timer::Router)];
        }
        let now = self.now;
        match self.part(part).restarts.on_failed(now) {
            None => self.give_up(part),
            Some(delay) if delay.is_zero() => self.start_part(part),
            Some(delay) => {
                self.part(part).state = State::BackingOff;
                vec![set(timer(part), delay)]
            }
        }
    }

    /// Leaves a group down if there is another that serves or will; else ends everything.
    fn give_up(&mut self, part: Part) -> Vec<Action> {
        let RestartLimit { count, window } = self.limit;
        self.part(part).state = State::Down;
        if part == Part::Router || !self.has_group_in(&LIVE) {
            return self.end(Ending::GaveUp, Report::TooManyRestarts(part, count, window));
        }
        vec![Action::ClearTimer(timer(part)), Action::Report(Report::LeftDown(part, count, window))]
    }

    fn on_part_time_up(&mut self, part: Part) -> Vec<Action> {
        if self.phase == Phase::Stopping {
            return Vec::new();
        }
        let state = self.part(part).state;
        match state {
            State::Starting => self.on_start_timeout(part),
            State::Leaving => {
                self.part(part).state = State::Killing;
                let kills = self.alive_members(part).into_iter().map(Action::Kill);
                kills.chain([set(timer(part), KILL_TIMEOUT)]).collect()
            }
            State::Killing => {
                let left = self.alive_members(part);
                self.fail(Report::Unkillable(left))
            }
            State::BackingOff if part == Part::Router && !self.has_group_in(&[State::Up]) => {
                self.router.state = State::Down;
                Vec::new()
            }
            State::BackingOff => self.start_part(part),
            State::AwaitingNodes if self.phase == Phase::Starting => self.fail(Report::NodesMissing),
            // Another replica serves by now.
            State::AwaitingNodes | State::Down | State::Up => Vec::new(),
        }
    }

    fn on_start_timeout(&mut self, part: Part) -> Vec<Action> {
        let not_ready = self.members(part).into_iter().filter(|id| self.waiting.contains(id)).collect();
        match self.phase {
            Phase::Starting => self.fail(Report::NotReady(not_ready, Consequence::End)),
            _ => self.fail_part(part, Report::NotReady(not_ready, self.consequence(part))),
        }
    }

    fn on_stop_requested(&mut self) -> Vec<Action> {
        match self.phase {
            Phase::Starting => self.stop_all(),
            // Without a router there are no requests to finish.
            Phase::Serving if !self.alive.contains(&ProcessId::Router) => self.stop_all(),
            Phase::Serving => self.drain(),
            Phase::Draining => self.abort_requests(),
            Phase::Stopping => self.kill_all(),
        }
    }

    fn on_stop_time_up(&mut self) -> Vec<Action> {
        match self.phase {
            Phase::Starting | Phase::Serving => Vec::new(),
            Phase::Draining => self.abort_requests(),
            Phase::Stopping => self.kill_all(),
        }
    }

    fn drain(&mut self) -> Vec<Action> {
        self.phase = Phase::Draining;
        let grace = self.timeouts.grace;
        let report = Action::Report(Report::Draining(grace));
        vec![report, Action::ClosePort, Action::Terminate(ProcessId::Router), set(Timer::Stop, grace)]
    }

    /// Has the router end its streams with an error. It needs its shards until it has ended.
    fn abort_requests(&mut self) -> Vec<Action> {
        if self.is_aborting() {
            self.phase = Phase::Stopping;
            return self.kill_all();
        }
        self.ending = Ending::Aborted;
        let report = Action::Report(Report::AbortingRequests);
        vec![report, Action::AbortRequests, set(Timer::Stop, STOP_TIMEOUT)]
    }

    fn is_aborting(&self) -> bool {
        self.ending == Ending::Aborted
    }

    fn fail(&mut self, report: Report) -> Vec<Action> {
        self.end(Ending::Failed, report)
    }

    fn end(&mut self, ending: Ending, report: Report) -> Vec<Action> {
        self.ending = ending;
        let mut actions = vec![Action::Report(report)];
        actions.extend(self.stop_all());
        actions
    }

    /// The router comes first in the list, so that it gets its signal before its shards end.
    fn stop_all(&mut self) -> Vec<Action> {
        self.phase = Phase::Stopping;
        let terminate = self.alive.iter().rev().map(|&id| match id {
            ProcessId::Router => Action::AbortRequests,
            ProcessId::Shard { .. } => Action::Terminate(id),
        });
        let mut actions: Vec<_> = [Action::ClosePort].into_iter().chain(terminate).collect();
        actions.push(set(Timer::Stop, STOP_TIMEOUT));
        actions
    }

    fn kill_all(&self) -> Vec<Action> {
        self.alive.iter().map(|&id| Action::Kill(id)).chain([set(Timer::Stop, STOP_TIMEOUT)]).collect()
    }
}
