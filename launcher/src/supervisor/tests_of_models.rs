//! Several models: groups that come and go, and what becomes of one that was never ready.

use super::ProcessId::Router;
use super::tests::{LIMIT, TIMEOUTS, alone, at, end_of, exit, starts};
use super::*;

/// Two models that are ready behind a proxy, with room for a third.
fn serving_models() -> Supervisor {
    let (mut supervisor, actions) = Supervisor::start_models((vec![vec![0, 1]], 1), TIMEOUTS, LIMIT);
    assert_eq!(starts(&actions), [alone(0), alone(1)], "a spare place is not started");
    assert_eq!(starts(&supervisor.on(Event::Ready(alone(1)), at(1))), [], "the proxy waits for all");
    assert_eq!(starts(&supervisor.on(Event::Ready(alone(0)), at(2))), [Router]);
    supervisor.on(Event::Ready(Router), at(3));
    supervisor
}

#[test]
fn a_model_that_cannot_be_loaded_at_the_start_ends_everything() {
    let (mut supervisor, _) = Supervisor::start_models((vec![vec![0, 1]], 0), TIMEOUTS, LIMIT);
    supervisor.on(Event::Ready(alone(0)), at(1));
    let actions = supervisor.on(Event::Exited(alone(1), exit(false)), at(2));
    assert!(actions.contains(&Action::Terminate(alone(0))));
    let last = supervisor.on(Event::Exited(alone(0), exit(false)), at(2));
    assert_eq!(end_of(&last), Some(Ending::Failed));
}

#[test]
fn a_model_is_added_removed_and_added_again() {
    let mut supervisor = serving_models();
    for time in [10, 20] {
        assert_eq!(starts(&supervisor.on(Event::Added(2), at(time))), [alone(2)]);
        let ready = supervisor.on(Event::Ready(alone(2)), at(time + 1));
        assert!(ready.contains(&Action::Report(Report::Loaded(2))), "{ready:?}");
        assert_eq!(starts(&ready), [], "the proxy runs already");
        assert!(supervisor.on(Event::Removed(2), at(time + 2)).contains(&Action::Terminate(alone(2))));
        let gone = supervisor.on(Event::Exited(alone(2), exit(true)), at(time + 3));
        assert!(gone.contains(&Action::Report(Report::Removed(2))), "{gone:?}");
    }
}

#[test]
fn a_model_that_was_added_and_cannot_be_loaded_is_dropped() {
    let mut supervisor = serving_models();
    supervisor.on(Event::Added(2), at(10));
    let actions = supervisor.on(Event::Exited(alone(2), exit(false)), at(11));
    assert!(actions.contains(&Action::Report(Report::Died(alone(2), exit(false), Consequence::Drop))));
    assert!(actions.contains(&Action::Report(Report::Removed(2))), "{actions:?}");
    assert_eq!((starts(&actions), end_of(&actions)), (vec![], None));
    assert_eq!(starts(&supervisor.on(Event::Added(2), at(12))), [alone(2)], "its place is free again");
    let late = supervisor.on(Event::TimeUp(Timer::Group(2)), at(30));
    assert!(late.contains(&Action::Kill(alone(2))), "{late:?}");
    let gone = supervisor.on(Event::Exited(alone(2), exit(false)), at(31));
    assert!(gone.contains(&Action::Report(Report::Removed(2))), "{gone:?}");
}

#[test]
fn a_model_that_was_ready_is_started_again_like_the_others() {
    let mut supervisor = serving_models();
    supervisor.on(Event::Added(2), at(10));
    supervisor.on(Event::Ready(alone(2)), at(11));
    let actions = supervisor.on(Event::Exited(alone(2), exit(false)), at(60));
    assert_eq!(starts(&actions), [alone(2)]);
    assert!(actions.contains(&Action::Report(Report::Died(alone(2), exit(false), Consequence::Restart))));
}

#[test]
fn no_model_is_added_where_there_is_one_or_while_the_server_ends() {
    let mut supervisor = serving_models();
    let refused = [Action::Report(Report::Removed(0))];
    assert_eq!(supervisor.on(Event::Added(0), at(10)), refused);
    supervisor.on(Event::StopRequested, at(11));
    assert_eq!(supervisor.on(Event::Added(2), at(12)), [Action::Report(Report::Removed(2))]);
}

#[test]
fn models_that_share_memory_start_one_after_the_other_in_their_order() {
    let (mut supervisor, first) = Supervisor::start_models((vec![vec![2], vec![0, 1]], 0), TIMEOUTS, LIMIT);
    assert_eq!(starts(&first), [alone(2)]);
    assert_eq!(starts(&supervisor.on(Event::Ready(alone(2)), at(5))), [alone(0), alone(1)]);
    assert_eq!(starts(&supervisor.on(Event::Ready(alone(0)), at(6))), []);
    assert_eq!(starts(&supervisor.on(Event::Ready(alone(1)), at(7))), [Router]);
    let (mut supervisor, _) = Supervisor::start_models((vec![vec![1], vec![0]], 0), TIMEOUTS, LIMIT);
    assert_eq!(end_of(&supervisor.on(Event::Exited(alone(1), exit(false)), at(1))), Some(Ending::Failed));
}
