//! Shards as far as other weights go: what the files of a folder are is told by the last part of its path, and what becomes of
//! tensors by the name of the last one.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use penstock_router::engine::trainer::{Announced, Meeting, Missing, ReceiveFailure, WeightsReceiver};
use penstock_router::engine::weights::{CheckFailure, WeightsChecker};

/// Refuses folders that are called "bad", answers nothing of those that are called "lost", and takes too long for "slow".
pub struct FakeWeights;

#[async_trait]
impl WeightsChecker for FakeWeights {
    async fn check(&self, folder: &Path) -> Result<String, CheckFailure> {
        match folder.file_name().and_then(|name| name.to_str()).unwrap_or_default() {
            "bad" => {
                Err(CheckFailure::Refused(format!("{}/model.safetensors: no tensor a", folder.display())))
            }
            "lost" => Err(CheckFailure::Unreachable("gone".to_owned())),
            "slow" => Err(CheckFailure::TooSlow(Duration::from_secs(60))),
            name => Ok(format!("files of {name}")),
        }
    }
}

#[async_trait]
impl WeightsReceiver for FakeWeights {
    fn num_ranks(&self) -> u32 {
        2
    }

    async fn join(&self, meeting: &Meeting) -> Result<(), ReceiveFailure> {
        match meeting.port {
            9 => Err(ReceiveFailure::Ended("the ranks of the group did not meet within 300 s".to_owned())),
            _ => Ok(()),
        }
    }

    /// The model has as many tensors as the first size of the last tensor says.
    async fn receive(&self, _: &Path, tensors: &[Announced]) -> Result<Missing, ReceiveFailure> {
        let last = tensors.last().expect("there is one");
        match &*last.name {
            "wrong" => Err(ReceiveFailure::Refused("tensor wrong is not in the weights in use".to_owned())),
            "gone" => Err(ReceiveFailure::Ended("the trainer is gone".to_owned())),
            "lost" => Err(ReceiveFailure::Unreachable("tcp:10.0.0.1:9".to_owned())),
            _ => Ok(Missing { number: last.shape[0] as u32, first: "b".to_owned() }),
        }
    }

    async fn leave(&self) {}

    async fn forget(&self, _: &Path) {}
}
