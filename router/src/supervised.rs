//! The reports of a router about its engine, for the launcher that started it.

use crate::base::launcher_line::{ALIVE_EVERY, Line};
use crate::engine::generation::{EngineHandle, EngineStatus, ReplicaStatus};

/// Reports the state of the engine to the launcher until the engine loop ends.
pub(crate) async fn report(mut engine: EngineHandle) {
    let mut ticks = tokio::time::interval(ALIVE_EVERY);
    let mut known = engine.status.borrow_and_update().clone();
    loop {
        tokio::select! {
            _ = ticks.tick() => if engine.is_live() { Line::Alive.write() },
            changed = engine.status.changed() => match changed {
                Ok(()) => {
                    let now = engine.status.borrow_and_update().clone();
                    news(&known, &now).iter().for_each(Line::write);
                    known = now;
                }
                Err(_) => return,
            },
        }
    }
}

/// The replicas that have failed between two looks at all of them, and those whose shards are there again.
fn news(before: &[ReplicaStatus], now: &[ReplicaStatus]) -> Vec<Line> {
    let was = |replica| before.iter().find(|one| one.replica == replica).map(|one| &one.status);
    let line = |one: &ReplicaStatus| {
        let was = was(one.replica).filter(|was| **was != one.status)?;
        match (was, &one.status) {
            (_, EngineStatus::Restarting(reason)) => Some(Line::ShardsFailed(one.replica, reason.clone())),
            (_, EngineStatus::Lost(_)) => None,
            (EngineStatus::Restarting(_), _) => Some(Line::ShardsBack(one.replica)),
            _ => None,
        }
    };
    now.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::role::Role;
    use crate::engine::condition::AwakeBytes;

    #[test]
    fn only_a_replica_that_has_just_failed_or_come_back_is_reported() {
        let one = |replica, status| ReplicaStatus {
            replica,
            takes_requests: true,
            role: Role::Both,
            awake_bytes: AwakeBytes::default(),
            status,
        };
        let ready = |replica| one(replica, EngineStatus::Ready);
        let down = |replica| one(replica, EngineStatus::Restarting("gone".to_owned()));
        let lines = news(&[down(0), ready(1), ready(2), ready(3)], &[down(0), down(1), ready(3), down(4)]);
        assert_eq!(lines, [Line::ShardsFailed(1, "gone".to_owned())], "others were removed or added");
        let asleep = one(1, EngineStatus::Asleep);
        let lost = one(2, EngineStatus::Lost("gone".to_owned()));
        let lines = news(&[down(0), down(1), down(2), ready(3)], &[ready(0), asleep, lost, ready(3)]);
        assert_eq!(lines, [Line::ShardsBack(0), Line::ShardsBack(1)]);
    }
}
