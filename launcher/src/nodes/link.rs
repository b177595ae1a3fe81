//! A connection between two nodes that have met: messages both ways, and beats, so that either notices when the other is
//! stopped or cut off.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{MissedTickBehavior, interval};

use super::channel::{Broken, Channel, Listener, Speaker, in_time};
use super::messages::Frame;

/// How often either side says that it lives.
const BEAT: Duration = Duration::from_millis(500);
/// After this time without a word the other side is lost. Shorter than killed shards are waited for: those of a node that
/// is cut off end by this, and not as ones that cannot be killed.
pub const SILENCE: Duration = Duration::from_millis(3000);

/// Carries messages both ways until the connection is of no use, and says why. It ends well when no more will be said.
pub async fn carry<Heard: DeserializeOwned, Said: Serialize>(
    channel: Channel,
    heard: impl FnMut(Heard) -> Result<(), Broken>,
    said: UnboundedReceiver<Said>,
) -> Result<(), Broken> {
    tokio::select! {
        broken = hear_all(channel.listener, heard) => broken,
        ended = say_all(channel.speaker, said) => ended,
    }
}

async fn hear_all<Heard: DeserializeOwned>(
    mut listener: Listener,
    mut heard: impl FnMut(Heard) -> Result<(), Broken>,
) -> Result<(), Broken> {
    loop {
        if let Frame::Message(message) = in_time(SILENCE, listener.hear()).await? {
            heard(message)?;
        }
    }
}

async fn say_all<Said: Serialize>(
    mut speaker: Speaker,
    mut said: UnboundedReceiver<Said>,
) -> Result<(), Broken> {
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = said.recv() => match message {
                Some(message) => speaker.say(&Frame::Message(message)).await?,
                None => return Ok(()),
            },
            _ = beats.tick() => speaker.say(&Frame::<Said>::Beat).await?,
        }
    }
}
