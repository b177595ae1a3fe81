//! Orders to a shard as a rank of a trainer's group.

use std::path::Path;

use tonic::{Code, Status};

use super::{Connection, is_lost, pb};
use crate::engine::trainer::{Announced, Meeting, Missing, ReceiveFailure};
use pb::receive_weights_request::Order as Message;

/// An order to a shard, which answers at once.
#[derive(Clone, Copy)]
pub(in crate::engine) enum Order<'a> {
    /// To become this rank of a group.
    Join(&'a Meeting, u32),
    /// To receive tensors into a folder.
    Receive(&'a Path, &'a [Announced]),
    /// To be in no group.
    Leave,
    /// To remove a folder that was received.
    Forget(&'a Path),
    /// To go on, and say how far it is.
    Go,
}

impl Connection {
    /// The tensors that are missing when the shard has done it; `None` while it does it. The caller limits the time.
    pub async fn receive_weights(mut self, order: Order<'_>) -> Result<Option<Missing>, ReceiveFailure> {
        let request = pb::ReceiveWeightsRequest { order: to_pb(order) };
        let response = self.0.receive_weights(request).await.map_err(failure)?.into_inner();
        let missing = Missing { number: response.num_missing, first: response.missing };
        Ok((!response.is_busy).then_some(missing))
    }
}

fn to_pb(order: Order<'_>) -> Option<Message> {
    match order {
        Order::Join(meeting, rank) => Some(Message::Join(pb::JoinTrainer {
            host: meeting.host.clone(),
            port: u32::from(meeting.port),
            group: meeting.name.clone(),
            rank,
            world_size: meeting.world_size,
            timeout_s: meeting.timeout.as_secs() as u32,
        })),
        Order::Receive(folder, tensors) => Some(Message::Tensors(pb::AnnouncedTensors {
            path: folder.display().to_string(),
            tensors: tensors.iter().map(announced).collect(),
        })),
        Order::Leave => Some(Message::Leave(pb::LeaveTrainer {})),
        Order::Forget(folder) => Some(Message::Forget(folder.display().to_string())),
        Order::Go => None,
    }
}

fn announced(tensor: &Announced) -> pb::AnnouncedTensor {
    let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype.to_owned(), tensor.shape.clone());
    pb::AnnouncedTensor { name, dtype, shape }
}

fn failure(status: Status) -> ReceiveFailure {
    if is_lost(&status) {
        return ReceiveFailure::Unreachable(status.to_string());
    }
    let reason = status.message().to_owned();
    if status.code() == Code::InvalidArgument {
        ReceiveFailure::Refused(reason)
    } else {
        ReceiveFailure::Ended(reason)
    }
}
