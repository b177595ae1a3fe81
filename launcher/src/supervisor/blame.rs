//! What the router says of shards: that it can no longer use them, and that it has others instead. It sees that a shard
//! ended before or after the launcher does. So its word alone ends a group only when nothing else has happened for a moment:
//! the exit of a shard is the better report, and shards that were started since are not those that it means. It may have
//! these before the launcher knows that they are ready; only then can it mean them.

use super::messages::{BLAME_DELAY, set};
use super::{Action, Part, Phase, Report, State, Supervised, Supervisor, Timer};

impl Supervisor {
    /// The router's shards are of no use to it, unless they are being restarted already. Of shards that it does not know,
    /// because they are not the launcher's, it need not be heard.
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

    /// The router never takes back the shards that it blamed, so those that it has now are others.
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
