//! The state machine, step by step and over random histories.

use super::ProcessId::Router;
use super::messages::BLAME_DELAY;
use super::*;

pub const TIMEOUTS: Timeouts = Timeouts { startup: Duration::from_secs(9), grace: Duration::from_secs(90) };
pub const LIMIT: RestartLimit = RestartLimit { count: 3, window: Duration::from_secs(100) };

pub fn exit(success: bool) -> Exit {
    Exit { code: Some(i32::from(!success)), status: "exit".to_owned(), last_error: Vec::new() }
}

pub fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A shard of the first replica.
fn shard(rank: usize) -> ProcessId {
    ProcessId::Shard { group: 0, rank }
}

/// The only shard of a replica.
pub fn alone(group: usize) -> ProcessId {
    ProcessId::Shard { group, rank: 0 }
}

fn started(num_shards: usize) -> (Supervisor, Vec<Action>) {
    Supervisor::start((1, num_shards), &[], TIMEOUTS, LIMIT)
}

/// Two replicas of one shard each, the first of which serves while the other still loads.
pub fn serving_by_the_first() -> Supervisor {
    let (mut supervisor, actions) = Supervisor::start((2, 1), &[], TIMEOUTS, LIMIT);
    assert_eq!(starts(&actions), [alone(0), alone(1)]);
    assert_eq!(starts(&supervisor.on(Event::Ready(alone(0)), at(1))), [Router]);
    supervisor.on(Event::Ready(Router), at(2));
    supervisor
}

fn serving() -> Supervisor {
    let (mut supervisor, _) = started(2);
    for id in [shard(0), shard(1), Router] {
        supervisor.on(Event::Ready(id), at(0));
    }
    assert_eq!(supervisor.phase, Phase::Serving);
    supervisor
}

pub fn end_of(actions: &[Action]) -> Option<Ending> {
    actions.iter().find_map(|action| match action {
        Action::End(ending) => Some(*ending),
        _ => None,
    })
}

pub fn starts(actions: &[Action]) -> Vec<ProcessId> {
    let ids = actions.iter().filter_map(|action| match action {
        Action::Start(id) => Some(*id),
        _ => None,
    });
    ids.collect()
}

#[test]
fn starts_all_shards_at_once_and_the_router_after_the_last() {
    let (mut supervisor, actions) = started(2);
    let timer = Action::SetTimer(Timer::Group(0), TIMEOUTS.startup);
    assert_eq!(actions, [Action::Start(shard(0)), Action::Start(shard(1)), timer]);
    assert_eq!(supervisor.on(Event::Ready(shard(1)), at(1)), []);
    let actions = supervisor.on(Event::Ready(shard(0)), at(1));
    assert!(actions.contains(&Action::Report(Report::Loaded(0))));
    assert_eq!(starts(&actions), [Router]);
}

#[test]
fn stops_the_router_before_the_shards() {
    let mut supervisor = serving();
    let actions = supervisor.on(Event::StopRequested, at(1));
    assert!(actions.contains(&Action::Terminate(Router)));
    assert!(!actions.contains(&Action::Terminate(shard(0))));
    let actions = supervisor.on(Event::Exited(Router, exit(true)), at(2));
    assert!(actions.contains(&Action::Terminate(shard(0))));
    supervisor.on(Event::Exited(shard(0), exit(false)), at(2));
    let last = supervisor.on(Event::Exited(shard(1), exit(false)), at(2));
    assert_eq!(end_of(&last), Some(Ending::Stopped));
}

#[test]
fn a_death_before_serving_ends_everything_and_is_the_only_report() {
    let (mut supervisor, _) = started(2);
    let actions = supervisor.on(Event::Exited(shard(1), exit(false)), at(1));
    let report = Report::Died(shard(1), exit(false), Consequence::End);
    assert_eq!(actions[0], Action::Report(report));
    assert!(actions.contains(&Action::Terminate(shard(0))));
    let actions = supervisor.on(Event::Exited(shard(0), exit(false)), at(1));
    assert_eq!(actions, [Action::End(Ending::Failed)]);
}

#[test]
fn a_flag_that_a_shard_refuses_is_wrong_usage_before_serving_alone() {
    let refused = || Exit { code: Some(2), ..exit(false) };
    let (mut supervisor, _) = started(2);
    supervisor.on(Event::Exited(shard(1), refused()), at(1));
    let actions = supervisor.on(Event::Exited(shard(0), exit(false)), at(1));
    assert_eq!(actions, [Action::End(Ending::WrongUsage)]);
}

#[test]
fn the_group_of_a_dead_shard_is_restarted_and_the_router_stays() {
    let mut supervisor = serving();
    let actions = supervisor.on(Event::Exited(shard(0), exit(false)), at(60));
    assert_eq!(actions[1], Action::Kill(shard(1)));
    assert!(!actions.contains(&Action::Kill(Router)));
    let actions = supervisor.on(Event::Exited(shard(1), exit(false)), at(60));
    assert_eq!(starts(&actions), [shard(0), shard(1)], "at once, because it ran long enough");
    supervisor.on(Event::Ready(shard(0)), at(65));
    let actions = supervisor.on(Event::Ready(shard(1)), at(65));
    assert!(actions.contains(&Action::Report(Report::Recovered(Part::Group(0)))));
    assert_eq!(starts(&actions), [], "the router was never stopped");
}

#[test]
fn a_shard_that_hangs_or_errs_is_killed_with_its_group_once() {
    let hung = Event::Hung(shard(1), "silent".to_owned());
    let failed = Event::ShardsFailed(0, "not a number".to_owned());
    for (first, second) in [(hung.clone(), failed.clone()), (Event::TimeUp(Timer::Blame(0)), hung)] {
        let mut supervisor = serving();
        supervisor.on(failed.clone(), at(60));
        let actions = supervisor.on(first, at(60));
        assert_eq!(actions[1..3], [Action::Kill(shard(0)), Action::Kill(shard(1))]);
        assert_eq!(supervisor.on(second, at(60)), [], "it is being killed");
    }
}

#[test]
fn a_router_that_dies_is_started_again_and_the_shards_stay() {
    let mut supervisor = serving();
    let actions = supervisor.on(Event::Exited(Router, exit(false)), at(60));
    assert_eq!(starts(&actions), [Router]);
    assert!(!actions.iter().any(|action| matches!(action, Action::Kill(_) | Action::Terminate(_))));
    let actions = supervisor.on(Event::Ready(Router), at(61));
    assert!(actions.contains(&Action::Report(Report::Recovered(Part::Router))));
}

#[test]
fn a_router_that_dies_with_its_shards_waits_for_them() {
    let mut supervisor = serving();
    supervisor.on(Event::Exited(shard(0), exit(false)), at(60));
    assert_eq!(starts(&supervisor.on(Event::Exited(Router, exit(false)), at(60))), []);
    supervisor.on(Event::Exited(shard(1), exit(false)), at(60));
    supervisor.on(Event::Ready(shard(0)), at(62));
    assert_eq!(starts(&supervisor.on(Event::Ready(shard(1)), at(62))), [Router]);
}

#[test]
fn too_many_restarts_end_everything_with_a_reason() {
    let mut supervisor = serving();
    for time in 0..3 {
        let actions = supervisor.on(Event::Exited(Router, exit(false)), at(time * 10 + 10));
        assert_eq!(starts(&actions), [Router]);
        supervisor.on(Event::Ready(Router), at(time * 10 + 11));
    }
    let actions = supervisor.on(Event::Exited(Router, exit(false)), at(40));
    let report = Report::TooManyRestarts(Part::Router, 3, LIMIT.window);
    assert!(!actions.contains(&Action::AbortRequests), "no router runs");
    assert!(actions.contains(&Action::Report(report)));
    supervisor.on(Event::Exited(shard(0), exit(true)), at(41));
    let last = supervisor.on(Event::Exited(shard(1), exit(true)), at(41));
    assert_eq!(end_of(&last), Some(Ending::GaveUp));
}

#[test]
fn a_restart_that_hangs_is_killed_and_tried_again() {
    let mut supervisor = serving();
    supervisor.on(Event::Exited(shard(0), exit(false)), at(60));
    supervisor.on(Event::Exited(shard(1), exit(false)), at(60));
    let actions = supervisor.on(Event::TimeUp(Timer::Group(0)), at(69));
    assert!(actions.contains(&Action::Kill(shard(0))));
    supervisor.on(Event::Exited(shard(0), exit(false)), at(69));
    let actions = supervisor.on(Event::Exited(shard(1), exit(false)), at(69));
    assert_eq!(starts(&actions), [], "it failed at once, so it waits");
    assert_eq!(starts(&supervisor.on(Event::TimeUp(Timer::Group(0)), at(70))), [shard(0), shard(1)]);
}

#[test]
fn a_process_that_hangs_during_a_restart_is_killed_with_its_part() {
    let mut supervisor = serving();
    supervisor.on(Event::Exited(shard(0), exit(false)), at(60));
    supervisor.on(Event::Exited(shard(1), exit(false)), at(60));
    let actions = supervisor.on(Event::Hung(shard(1), "stopped".to_owned()), at(62));
    assert_eq!(actions[1..3], [Action::Kill(shard(0)), Action::Kill(shard(1))]);
    assert_eq!(supervisor.on(Event::Hung(shard(1), "stopped".to_owned()), at(62)), [], "once");
}

#[test]
fn a_process_that_hangs_before_serving_ends_everything() {
    let (mut supervisor, _) = started(2);
    let actions = supervisor.on(Event::Hung(shard(1), "stopped".to_owned()), at(1));
    let report = Report::Hung(shard(1), "stopped".to_owned(), Consequence::End);
    assert_eq!(actions[0], Action::Report(report));
    assert!(actions.contains(&Action::Terminate(shard(0))));
}

#[test]
fn shards_are_restarted_while_streams_drain() {
    let mut supervisor = serving();
    assert!(supervisor.on(Event::StopRequested, at(10)).contains(&Action::ClosePort));
    supervisor.on(Event::Exited(shard(0), exit(false)), at(11));
    let actions = supervisor.on(Event::Exited(shard(1), exit(false)), at(11));
    assert_eq!(starts(&actions), [shard(0), shard(1)]);
}

#[test]
fn a_second_signal_or_the_end_of_the_grace_cuts_requests_short() {
    for second in [Event::StopRequested, Event::TimeUp(Timer::Stop)] {
        let mut supervisor = serving();
        supervisor.on(Event::StopRequested, at(1));
        let actions = supervisor.on(second, at(2));
        assert!(actions.contains(&Action::AbortRequests));
        assert!(!actions.contains(&Action::Terminate(shard(0))));
        assert!(supervisor.on(Event::TimeUp(Timer::Stop), at(7)).contains(&Action::Kill(shard(0))));
        for id in [Router, shard(0)] {
            assert_eq!(end_of(&supervisor.on(Event::Exited(id, exit(false)), at(7))), None);
        }
        let last = supervisor.on(Event::Exited(shard(1), exit(false)), at(7));
        assert_eq!(end_of(&last), Some(Ending::Aborted));
    }
}

#[test]
fn a_startup_timeout_reports_the_shards_that_are_not_ready() {
    let (mut supervisor, _) = started(2);
    supervisor.on(Event::Ready(shard(0)), at(1));
    let actions = supervisor.on(Event::TimeUp(Timer::Group(0)), at(9));
    assert_eq!(actions[0], Action::Report(Report::NotReady(vec![shard(1)], Consequence::End)));
}

#[test]
fn a_replica_is_restarted_alone_and_the_router_only_waits_for_the_first() {
    let mut supervisor = serving_by_the_first();
    assert_eq!(supervisor.phase, Phase::Serving);
    let actions = supervisor.on(Event::Ready(alone(1)), at(3));
    assert!(actions.contains(&Action::Report(Report::Loaded(1))) && starts(&actions).is_empty());
    let actions = supervisor.on(Event::Exited(alone(1), exit(false)), at(60));
    assert_eq!(starts(&actions), [alone(1)]);
    assert!(!actions.iter().any(|action| matches!(action, Action::Kill(_))), "the others go on");
    let failed = Event::ShardsFailed(0, "not a number".to_owned());
    assert_eq!(supervisor.on(failed, at(61)), [Action::SetTimer(Timer::Blame(0), BLAME_DELAY)]);
    assert!(supervisor.on(Event::TimeUp(Timer::Blame(0)), at(62)).contains(&Action::Kill(alone(0))));
    assert_eq!(supervisor.on(Event::ShardsFailed(7, String::new()), at(61)), [], "it is not the launcher's");
}

#[test]
fn a_router_is_started_again_while_any_replica_is_up() {
    let mut supervisor = serving_by_the_first();
    supervisor.on(Event::Exited(alone(0), exit(false)), at(60));
    assert_eq!(starts(&supervisor.on(Event::Exited(Router, exit(false)), at(60))), [], "none is up");
    assert_eq!(starts(&supervisor.on(Event::Ready(alone(1)), at(61))), [Router]);
}

#[test]
fn a_replica_that_fails_too_often_is_left_down_and_the_last_ends_everything() {
    let mut supervisor = serving_by_the_first();
    let mut give_up = |group: usize, begin: u64| {
        let mut actions = Vec::new();
        for time in 0..=3 {
            supervisor.on(Event::Ready(alone(group)), at(begin + time * 10));
            actions = supervisor.on(Event::Exited(alone(group), exit(false)), at(begin + time * 10 + 5));
        }
        actions
    };
    let actions = give_up(1, 10);
    assert!(
        actions.contains(&Action::Report(Report::LeftDown(Part::Group(1), 3, LIMIT.window))),
        "{actions:?}"
    );
    assert_eq!(starts(&actions), []);
    let actions = give_up(0, 60);
    assert!(
        actions.contains(&Action::Report(Report::TooManyRestarts(Part::Group(0), 3, LIMIT.window))),
        "{actions:?}"
    );
    assert!(actions.contains(&Action::AbortRequests));
}

/// Three replicas of one shard each, which all serve.
fn serving_by_three() -> Supervisor {
    let (mut supervisor, _) = Supervisor::start((3, 1), &[], TIMEOUTS, LIMIT);
    for id in [alone(0), alone(1), alone(2), Router] {
        supervisor.on(Event::Ready(id), at(1));
    }
    supervisor
}

#[test]
fn the_shards_of_a_replica_that_was_removed_end_and_stay_down() {
    let mut supervisor = serving_by_three();
    let actions = supervisor.on(Event::Removed(1), at(10));
    assert_eq!(actions, [Action::Terminate(alone(1)), Action::SetTimer(Timer::Group(1), STOP_TIMEOUT)]);
    assert_eq!(supervisor.on(Event::Removed(1), at(10)), [], "once");
    assert_eq!(supervisor.on(Event::Removed(7), at(10)), [], "it is not the launcher's");
    assert_eq!(supervisor.on(Event::Hung(alone(1), String::new()), at(11)), []);
    assert_eq!(supervisor.on(Event::ShardsFailed(1, String::new()), at(11)), []);
    let actions = supervisor.on(Event::TimeUp(Timer::Group(1)), at(15));
    let kill = [Action::Kill(alone(1)), Action::SetTimer(Timer::Group(1), KILL_TIMEOUT)];
    assert_eq!(actions, kill, "it did not listen");
    let actions = supervisor.on(Event::Exited(alone(1), exit(false)), at(15));
    assert_eq!(actions, [Action::ClearTimer(Timer::Group(1)), Action::Report(Report::Removed(1))]);
    assert_eq!(
        starts(&supervisor.on(Event::Exited(Router, exit(false)), at(20))),
        [Router],
        "the others serve"
    );
}

#[test]
fn a_replica_that_is_down_or_restarts_is_removed_without_being_started_again() {
    let mut supervisor = serving_by_three();
    supervisor.on(Event::Exited(alone(1), exit(false)), at(60));
    supervisor.on(Event::Exited(alone(1), exit(false)), at(60));
    let actions = supervisor.on(Event::Removed(1), at(60));
    assert!(actions.contains(&Action::Report(Report::Removed(1))), "it waited to be started: {actions:?}");
    assert_eq!(supervisor.on(Event::TimeUp(Timer::Group(1)), at(61)), []);
    supervisor.on(Event::ShardsFailed(2, String::new()), at(62));
    supervisor.on(Event::TimeUp(Timer::Blame(2)), at(62));
    assert_eq!(supervisor.on(Event::Removed(2), at(62)), [], "it is killed already");
    let actions = supervisor.on(Event::Exited(alone(2), exit(false)), at(63));
    assert!(actions.contains(&Action::Report(Report::Removed(2))) && starts(&actions).is_empty());
}

#[test]
fn the_last_replica_that_serves_is_not_ended() {
    let mut supervisor = serving_by_three();
    supervisor.on(Event::Removed(0), at(10));
    supervisor.on(Event::Removed(1), at(10));
    assert_eq!(supervisor.on(Event::Removed(2), at(10)), []);
    supervisor.on(Event::Exited(alone(0), exit(true)), at(11));
    supervisor.on(Event::Exited(alone(1), exit(true)), at(11));
    assert_eq!(starts(&supervisor.on(Event::Exited(alone(2), exit(false)), at(60))), [alone(2)]);
}

/// A group of two ranks, the second of which is on another machine.
fn serving_over_nodes() -> Supervisor {
    let (mut supervisor, actions) = Supervisor::start((1, 2), &[0], TIMEOUTS, LIMIT);
    let limit = Action::SetTimer(Timer::Group(0), TIMEOUTS.startup);
    assert_eq!(actions, [Action::Report(Report::AwaitingNodes(0)), limit], "nothing is started yet");
    assert_eq!(starts(&supervisor.on(Event::NodesComplete(0), at(1))), [shard(0), shard(1)]);
    for id in [shard(0), shard(1), Router] {
        supervisor.on(Event::Ready(id), at(2));
    }
    supervisor
}

#[test]
fn a_group_waits_for_a_machine_that_was_lost_for_as_long_as_it_takes() {
    let mut supervisor = serving_over_nodes();
    assert_eq!(supervisor.on(Event::NodeLost(0), at(60)), []);
    let actions = supervisor.on(Event::Exited(shard(1), exit(false)), at(60));
    assert_eq!(actions[1], Action::Kill(shard(0)), "it lets go of its device");
    let actions = supervisor.on(Event::Exited(shard(0), exit(false)), at(61));
    let waits = [Action::Report(Report::AwaitingNodes(0)), Action::ClearTimer(Timer::Group(0))];
    assert_eq!(actions, waits);
    assert_eq!(starts(&supervisor.on(Event::NodesComplete(0), at(9000))), [shard(0), shard(1)]);
    supervisor.on(Event::Ready(shard(0)), at(9001));
    let actions = supervisor.on(Event::Ready(shard(1)), at(9001));
    assert!(actions.contains(&Action::Report(Report::Recovered(Part::Group(0)))));
    assert_eq!(starts(&actions), [], "the router never ended");
}

#[test]
fn a_machine_that_is_lost_while_the_model_loads_ends_nothing_but_one_that_never_comes_does() {
    let (mut supervisor, _) = Supervisor::start((1, 2), &[0], TIMEOUTS, LIMIT);
    supervisor.on(Event::NodesComplete(0), at(1));
    supervisor.on(Event::NodeLost(0), at(2));
    assert!(supervisor.on(Event::Exited(shard(1), exit(false)), at(2)).contains(&Action::Kill(shard(0))));
    let limit = Action::SetTimer(Timer::Group(0), TIMEOUTS.startup);
    assert!(supervisor.on(Event::Exited(shard(0), exit(false)), at(2)).contains(&limit));
    let actions = supervisor.on(Event::TimeUp(Timer::Group(0)), at(11));
    assert!(actions.contains(&Action::Report(Report::NodesMissing)), "{actions:?}");
    assert_eq!(end_of(&actions), Some(Ending::Failed));
}

#[test]
fn a_server_that_waits_for_a_machine_stops_when_it_is_asked_to() {
    let (mut supervisor, _) = Supervisor::start((1, 2), &[0], TIMEOUTS, LIMIT);
    assert_eq!(end_of(&supervisor.on(Event::StopRequested, at(1))), Some(Ending::Stopped));
    let mut supervisor = serving_over_nodes();
    supervisor.on(Event::NodeLost(0), at(60));
    supervisor.on(Event::Exited(shard(1), exit(false)), at(60));
    supervisor.on(Event::Exited(shard(0), exit(false)), at(60));
    assert!(supervisor.on(Event::StopRequested, at(61)).contains(&Action::Terminate(Router)));
    let last = supervisor.on(Event::Exited(Router, exit(true)), at(62));
    assert_eq!(end_of(&last), Some(Ending::Stopped));
}

/// With any events in any order: no process is started twice, and the end is reported exactly when the last one ended.
#[test]
fn a_replica_that_waits_for_its_machines_holds_up_no_other() {
    let (mut supervisor, actions) = Supervisor::start((2, 1), &[1], TIMEOUTS, LIMIT);
    assert_eq!(starts(&actions), [alone(0)]);
    assert!(actions.contains(&Action::Report(Report::AwaitingNodes(1))));
    assert_eq!(starts(&supervisor.on(Event::Ready(alone(0)), at(1))), [Router]);
    supervisor.on(Event::Ready(Router), at(2));
    assert_eq!(supervisor.on(Event::TimeUp(Timer::Group(1)), at(999)), [], "it may come at any time");
    assert_eq!(starts(&supervisor.on(Event::NodesComplete(1), at(1000))), [alone(1)]);
    assert_eq!(supervisor.on(Event::NodesComplete(0), at(1000)), [], "it needs nobody else");
    supervisor.on(Event::Ready(alone(1)), at(1001));
    assert_eq!(supervisor.on(Event::NodeLost(1), at(1002)), []);
    let lost = supervisor.on(Event::Exited(alone(1), exit(false)), at(1002));
    assert!(lost.contains(&Action::Report(Report::AwaitingNodes(1))), "{lost:?}");
    assert_eq!(starts(&supervisor.on(Event::NodesComplete(1), at(2000))), [alone(1)]);
}

#[test]
fn random_histories_end_with_the_last_process() {
    for seed in 0..5000_u64 {
        let started = match seed % 3 {
            0 => Supervisor::start((1, 3), &[0], TIMEOUTS, LIMIT),
            1 => Supervisor::start((3, 2), &[1, 2], TIMEOUTS, LIMIT),
            _ => Supervisor::start_models((vec![vec![0, 1]], 1), TIMEOUTS, LIMIT),
        };
        random_history(seed, started);
    }
}

fn random_history(seed: u64, (mut supervisor, mut actions): (Supervisor, Vec<Action>)) {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let (mut alive, mut timers) = (BTreeSet::new(), BTreeSet::new());
    for turn in 0..10_000 {
        for action in &actions {
            match action {
                Action::Start(id) => assert!(alive.insert(*id), "seed {seed}: {id:?} runs already"),
                Action::SetTimer(timer, _) => drop(timers.insert(*timer)),
                Action::ClearTimer(timer) => drop(timers.remove(timer)),
                _ => {}
            }
        }
        if end_of(&actions).is_some() {
            return assert!(alive.is_empty(), "seed {seed}: {alive:?} are left");
        }
        let may_go_on =
            !alive.is_empty() || !timers.is_empty() || supervisor.groups.iter().any(|group| !group.has_nodes);
        assert!(may_go_on, "seed {seed}: nothing will ever happen");
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let num_groups = supervisor.groups.len();
        actions = supervisor.on(random_event(random >> 33, num_groups, &mut alive, &mut timers), at(turn));
    }
    panic!("seed {seed}: it does not end");
}

fn random_event(
    random: u64,
    num_groups: usize,
    alive: &mut BTreeSet<ProcessId>,
    timers: &mut BTreeSet<Timer>,
) -> Event {
    let of_nodes = random as usize / 16 % num_groups;
    let id = alive.iter().nth(random as usize / 16 % alive.len().max(1)).copied();
    let timer = timers.iter().nth(random as usize / 16 % timers.len().max(1)).copied();
    match (random % 16, id, timer) {
        (0..=2, Some(id), _) => {
            alive.remove(&id);
            Event::Exited(id, exit(random.is_multiple_of(32)))
        }
        (3, ..) if random.is_multiple_of(64 + 3) => Event::StopRequested,
        (4, Some(id), _) => Event::Hung(id, String::new()),
        (5, ..) if random.is_multiple_of(5) => Event::Removed(random as usize / 16 % 3),
        (6, ..) if random.is_multiple_of(7) => Event::NodeLost(of_nodes),
        (6, ..) => Event::NodesComplete(of_nodes),
        (8, ..) if random.is_multiple_of(5) => Event::Added(random as usize / 16 % 3),
        (5, ..) if random.is_multiple_of(3) => Event::ShardsBack(random as usize / 16 % 3),
        (5, ..) => Event::ShardsFailed(random as usize / 16 % 3, String::new()),
        (7, _, Some(timer)) | (_, None, Some(timer)) => {
            timers.remove(&timer);
            Event::TimeUp(timer)
        }
        (_, Some(id), _) => Event::Ready(id),
        (_, None, None) if random.is_multiple_of(2) => Event::NodesComplete(of_nodes),
        (_, None, None) => Event::StopRequested,
    }
}
