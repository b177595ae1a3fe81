//! Which groups of shards the router connects to when it starts.

use std::time::Duration;

use thiserror::Error;

use crate::admin::record::Recorded;
use crate::config::RouterConfig;
use crate::engine::condition::Wanted;
use crate::engine::replica_access::ReplicaAccessError;
use crate::engine::replica_address::ReplicaAddress;
use crate::engine::shard_address::ShardAddress;
use crate::engine::{ConnectOptions, Origin};

/// Why that cannot be said.
#[derive(Debug, Error)]
pub enum GroupsError {
    /// Replicas would have different numbers of shards.
    #[error("--shard-sockets has {sockets} sockets, which --num-replicas {replicas} does not divide")]
    Uneven {
        /// The number of sockets of all replicas.
        sockets: usize,
        /// How many they are to be divided among.
        replicas: usize,
    },
    /// A file is of no use.
    #[error(transparent)]
    Access(#[from] ReplicaAccessError),
}

/// How to connect to each replica: first those that are supervised with this router, then those that are not, as the router
/// before this one had them or as the flags say.
pub(crate) fn to_connect(
    config: &RouterConfig,
    wanted: &Wanted,
    recorded: Option<&Recorded>,
) -> Result<Vec<ConnectOptions>, GroupsError> {
    let (sockets, replicas) = (config.shard_sockets.len(), config.num_replicas as usize);
    if !sockets.is_multiple_of(replicas) {
        return Err(GroupsError::Uneven { sockets, replicas });
    }
    let step_timeout = Duration::from_secs(config.options.step_timeout);
    let transfer_timeout = Duration::from_secs(config.options.replicas.block_transfer_timeout);
    let access = config.options.replicas.access()?;
    let options = |number, address: &ReplicaAddress| ConnectOptions {
        sockets: address.sockets(&access),
        step_timeout,
        origin: Origin { number, address: address.to_string(), is_supervised: false },
        wanted: wanted.clone(),
        transfer_timeout,
    };
    let own_options = |(number, shards): (usize, Vec<ShardAddress>)| ConnectOptions {
        sockets: shards.iter().map(|shard| shard.socket(&access)).collect(),
        step_timeout,
        origin: Origin {
            number: Some(number),
            address: address_of(&shards),
            is_supervised: config.supervised,
        },
        wanted: wanted.clone(),
        transfer_timeout,
    };
    let is_removed = |number: usize| recorded.is_some_and(|recorded| recorded.removed.contains(&number));
    let own = config.own_replicas().into_iter().enumerate();
    let own = own.filter(|(number, _)| !is_removed(*number)).map(own_options);
    let others: Vec<_> = match recorded {
        Some(recorded) => recorded.others.iter().map(|it| options(Some(it.replica), &it.address)).collect(),
        None => config.options.replicas.replica.iter().map(|address| options(None, address)).collect(),
    };
    Ok(own.chain(others).collect())
}

/// The address of a replica, as text for operators.
fn address_of(shards: &[ShardAddress]) -> String {
    let shown: Vec<_> = shards.iter().map(ShardAddress::to_string).collect();
    format!("unix:{}", shown.join(":"))
}
