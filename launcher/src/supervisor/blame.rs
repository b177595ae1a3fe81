//! The router's reports about shards: that it can no longer use them, and that it has new ones instead.
//!
//! The router notices the end of a shard before the launcher does, or after it. So the launcher ends a group because of
//! a report only when nothing else has happened for a moment. The exit of a shard is the better report. Shards that
//! were started since are not those that the router means, unless it has said that it has them: it may have them before
//! the launcher knows that they are ready.

use super::messages::{BLAME_DELAY, set};
use super::{Action, Part, Phase, Report, State, Supervised, Supervisor, Timer};

impl Supervisor {
    /// The router can no longer use the shards of a group. That changes nothing if they are being restarted already, or
    /// if the launcher does not have them.
    pub(super) fn on_shards_failed(&mut self, group: usize, reason: String) -> Vec<Action> {
        let is_meant = |group: &&mut Supervised| match group.state {
            State::Up => true,
            State::Starting => group.is_taken,
            State::Down | State::Killing | State::Leaving | State::BackingOff | State::AwaitingNodes => false,
        };
        let Some(blamed) = self.groups.get_mut(group).filter(is_meant) else {
            return Vec::new();
        };
        blamed.blame = Some(reason);
        vec![set(Timer::Blame(group), BLAME_DELAY)]
    }

    /// The router has shards again. It never takes back the shards that it blamed, so these are new ones.
    pub(super) fn on_shards_back(&mut self, group: usize) -> Vec<Action> {
        let Some(taken) = self.groups.get_mut(group) else {
            return Vec::new();
        };
        taken.is_taken = true;
        taken.blame.take().map(|_| Action::ClearTimer(Timer::Blame(group))).into_iter().collect()
    }

    pub(super) fn on_blame_time_up(&mut self, group: usize) -> Vec<Action> {
        match (self.groups[group].blame.take(), self.groups[group].state) {
            (Some(reason), State::Up) if self.phase != Phase::Stopping => {
                self.fail_part(Part::Group(group), Report::ShardsFailed(group, reason))
            }
            (Some(reason), State::Starting) => {
                self.groups[group].blame = Some(reason);
                vec![set(Timer::Blame(group), BLAME_DELAY)]
            }
            _ => Vec::new(),
        }
    }
}
