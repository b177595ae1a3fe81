//! Tests of what the router reports about shards, and which shard it means.

use super::messages::BLAME_DELAY;
use super::tests::{alone, at, exit, serving_by_the_first};
use super::*;

#[test]
fn shards_that_are_others_than_those_the_router_blames_go_on() {
    let failed = || Event::ShardsFailed(0, "its stream broke".to_owned());
    let mut supervisor = serving_by_the_first();
    supervisor.on(failed(), at(60));
    supervisor.on(Event::Exited(alone(0), exit(false)), at(60));
    supervisor.on(Event::Ready(alone(0)), at(60));
    assert_eq!(supervisor.on(Event::TimeUp(Timer::Blame(0)), at(60)), [], "they were started since");
    supervisor.on(failed(), at(61));
    let actions = supervisor.on(Event::ShardsBack(0), at(61));
    assert_eq!(actions, [Action::ClearTimer(Timer::Blame(0))], "the router was late, and has others by now");
    assert_eq!(supervisor.on(Event::TimeUp(Timer::Blame(0)), at(61)), []);
    assert_eq!(supervisor.on(Event::ShardsBack(0), at(61)), [], "they are not blamed");
    assert_eq!(supervisor.on(Event::ShardsBack(7), at(61)), [], "it is not the launcher's");
}

#[test]
fn shards_that_the_router_had_and_lost_before_they_were_seen_ready_are_restarted() {
    let failed = || Event::ShardsFailed(0, "its stream broke".to_owned());
    let mut supervisor = serving_by_the_first();
    supervisor.on(Event::Exited(alone(0), exit(false)), at(60));
    assert_eq!(supervisor.on(failed(), at(60)), [], "it means those before them");
    assert_eq!(supervisor.on(Event::ShardsBack(0), at(60)), []);
    let again = [Action::SetTimer(Timer::Blame(0), BLAME_DELAY)];
    assert_eq!(supervisor.on(failed(), at(60)), again);
    assert_eq!(supervisor.on(Event::TimeUp(Timer::Blame(0)), at(60)), again, "they are not ready yet");
    supervisor.on(Event::Ready(alone(0)), at(61));
    assert!(supervisor.on(Event::TimeUp(Timer::Blame(0)), at(61)).contains(&Action::Kill(alone(0))));
}
