//! Has the shards take part in a trainer's group: every rank of every replica, beside the stream of plans.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{join_all, try_join_all};

use super::client::{Connection, Order};
use super::groups::Groups;
use super::shard_socket::ShardSocket;
use super::trainer::{Announced, Meeting, Missing, ReceiveFailure, WeightsReceiver};

/// How long a rank may take to answer; what it is to do may take longer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
/// How often it is asked how far it is.
const POLL: Duration = Duration::from_millis(20);

/// The groups of all replicas. Replicas that come later are in no group of a trainer until it makes another one.
pub struct ReplicaReceivers(pub(super) Groups);

impl ReplicaReceivers {
    fn sockets(&self) -> Vec<ShardSocket> {
        self.0.all().iter().flat_map(|group| group.sockets.clone()).collect()
    }

    /// Has all do something that needs no others. Who cannot be asked has nothing of it.
    async fn tell(&self, order: Order<'_>) {
        let sockets = self.sockets();
        join_all(sockets.iter().map(|socket| ask_at(socket, order))).await;
    }
}

#[async_trait]
impl WeightsReceiver for ReplicaReceivers {
    fn num_ranks(&self) -> u32 {
        self.sockets().len() as u32
    }

    async fn join(&self, meeting: &Meeting) -> Result<(), ReceiveFailure> {
        let sockets = self.sockets();
        let ranks = (meeting.rank_offset..).zip(&sockets);
        try_join_all(ranks.map(|(rank, socket)| finished(socket, Order::Join(meeting, rank)))).await.map(drop)
    }

    async fn receive(&self, folder: &Path, tensors: &[Announced]) -> Result<Missing, ReceiveFailure> {
        let sockets = self.sockets();
        let received = sockets.iter().map(|socket| finished(socket, Order::Receive(folder, tensors)));
        // All have been sent the same.
        Ok(try_join_all(received).await?.pop().unwrap_or_default())
    }

    async fn leave(&self) {
        self.tell(Order::Leave).await;
    }

    async fn forget(&self, folder: &Path) {
        self.tell(Order::Forget(folder)).await;
    }
}

/// Waits until a rank has done what it is to do.
async fn finished(socket: &ShardSocket, order: Order<'_>) -> Result<Missing, ReceiveFailure> {
    let mut progress = ask_at(socket, order).await?;
    loop {
        match progress {
            Some(missing) => return Ok(missing),
            None => tokio::time::sleep(POLL).await,
        }
        progress = ask_at(socket, Order::Go).await?;
    }
}

async fn ask_at(socket: &ShardSocket, order: Order<'_>) -> Result<Option<Missing>, ReceiveFailure> {
    let asked = async {
        let connection = Connection::open(socket).await.map_err(ReceiveFailure::Unreachable)?;
        connection.receive_weights(order).await
    };
    let late = |_| ReceiveFailure::Unreachable("a shard does not answer".to_owned());
    tokio::time::timeout(ANSWER_DEADLINE, asked).await.map_err(late)?
}
