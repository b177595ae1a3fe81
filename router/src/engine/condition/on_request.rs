//! The effect of a request that comes while the shards sleep.

/// The effect of a request that comes while the shards sleep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnRequest {
    /// It wakes them.
    #[default]
    Wakes,
    /// It is refused.
    IsRefused,
    /// It waits until somebody who knows what else is awake wakes them over the admin socket.
    Waits,
}
