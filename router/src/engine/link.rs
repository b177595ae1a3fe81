//! The way to one group of shards: up while they answer, down while attempts to reach them go on.

use std::time::Duration;

use futures::future::BoxFuture;
use penstock_scheduler::{Outcome, Plan};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::condition::Condition;
use super::{Engine, EngineError};

/// How often shards that are lost are tried again.
const RETRY: Duration = Duration::from_millis(50);
/// Shards that refused to become others are left alone so long.
const AFTER_REFUSAL: Duration = Duration::from_millis(500);
/// Shards that are started again take some seconds; after so long a line says why they are not reached.
const TOLD_AFTER: Duration = Duration::from_secs(10);
/// Shards that answer and refuse are tried again after twice as long each time, up to this.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The way to the shards.
pub(super) enum Link {
    /// The shards answer.
    Up(Box<dyn Engine>),
    /// The shards are lost; attempts to reach them continue.
    Down(BoxFuture<'static, Reconnected>),
}

/// The engine, and whether it can be used again.
pub(super) type Reconnected = (Box<dyn Engine>, Result<(), EngineError>);

/// The next result from the link: an outcome, or a new connection.
pub(super) enum Arrival {
    Outcome(Result<Outcome, EngineError>),
    Reconnected(Reconnected),
}

impl Link {
    /// The link to shards that are not connected yet.
    pub fn down(engine: Box<dyn Engine>) -> Self {
        Self::Down(Box::pin(reconnect(engine)))
    }

    /// To shards that are to be as they were, after they refused to become others.
    pub fn down_for_a_while(engine: Box<dyn Engine>) -> Self {
        Self::Down(Box::pin(async {
            sleep(AFTER_REFUSAL).await;
            reconnect(engine).await
        }))
    }

    /// To shards that are of no use: nothing will ever come.
    pub fn gone() -> Self {
        Self::Down(Box::pin(std::future::pending()))
    }

    /// Cancel safe.
    pub async fn next(&mut self) -> Arrival {
        match self {
            Self::Up(engine) => Arrival::Outcome(engine.recv().await),
            Self::Down(attempts) => Arrival::Reconnected(attempts.await),
        }
    }

    /// Sends a plan; one for shards that are lost is dropped.
    pub fn send(&mut self, plan: &Plan) -> Result<(), EngineError> {
        match self {
            Self::Up(engine) => engine.send(plan),
            Self::Down(_) => Ok(()),
        }
    }

    /// The condition of the shards; `None` while they are not reached.
    pub fn condition(&self) -> Option<Condition> {
        match self {
            Self::Up(engine) => Some(engine.condition()),
            Self::Down(_) => None,
        }
    }

    /// The engine, while the shards are reached.
    pub fn engine(&self) -> Option<&dyn Engine> {
        match self {
            Self::Up(engine) => Some(&**engine),
            Self::Down(_) => None,
        }
    }

    /// Shards that are at rest become what is wanted of them; until then they are down.
    pub fn change(&mut self) {
        if let Self::Up(engine) = self {
            engine.let_go();
        }
        self.go_down();
    }

    /// Up becomes down.
    pub fn go_down(&mut self) {
        *self = match std::mem::replace(self, Self::gone()) {
            Self::Up(engine) => Self::down(engine),
            Self::Down(attempts) => Self::Down(attempts),
        };
    }
}

/// How long shards have not been reached.
#[derive(Default)]
struct Silence {
    since: Option<Instant>,
    is_told: bool,
}

impl Silence {
    /// They were not reached again; whether it is time to say so, which is once.
    fn goes_on(&mut self) -> bool {
        let lasted = self.since.get_or_insert_with(Instant::now).elapsed();
        let is_time = !self.is_told && lasted >= TOLD_AFTER;
        self.is_told |= is_time;
        is_time
    }
}

/// Tries until the shards are back, or are others than they were. That they refuse, or are not reached for long, is told
/// once, not with every try.
async fn reconnect(mut engine: Box<dyn Engine>) -> Reconnected {
    let (mut pause, mut silence) = (RETRY, Silence::default());
    loop {
        match engine.reconnect().await {
            Ok(()) => return (engine, Ok(())),
            Err(error) if error.is_final() || matches!(error, EngineError::Refused { .. }) => {
                return (engine, Err(error));
            }
            Err(error) if error.is_refusal() => {
                if pause == RETRY {
                    let address = engine.origin().address;
                    warn!(%error, address, "a replica is left out, and tried again less and less often");
                }
                (pause, silence) = (MAX_PAUSE.min(2 * pause), Silence::default());
            }
            Err(error) if silence.goes_on() => {
                let address = engine.origin().address;
                warn!(%error, address, "a replica cannot be reached, and is tried again and again");
                pause = RETRY;
            }
            Err(error) => {
                debug!(%error, "the shards are not back yet");
                pause = RETRY;
            }
        }
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;

    use super::*;
    use crate::engine::{EngineFacts, Origin};

    /// Refuses until the secret is right, and notes when it was tried.
    struct Refusing {
        tried: Arc<Mutex<Vec<Instant>>>,
        until: Instant,
    }

    #[async_trait]
    impl Engine for Refusing {
        fn facts(&self) -> &EngineFacts {
            unimplemented_by_test()
        }

        fn origin(&self) -> Origin {
            Origin::default()
        }

        fn send(&mut self, _: &Plan) -> Result<(), EngineError> {
            unimplemented_by_test()
        }

        async fn recv(&mut self) -> Result<Outcome, EngineError> {
            unimplemented_by_test()
        }

        async fn reconnect(&mut self) -> Result<(), EngineError> {
            self.tried.lock().unwrap().push(Instant::now());
            if Instant::now() < self.until { Err(EngineError::Unauthenticated { rank: 0 }) } else { Ok(()) }
        }

        fn let_go(&mut self) {
            unimplemented_by_test()
        }

        fn condition(&self) -> Condition {
            unimplemented_by_test()
        }
    }

    fn unimplemented_by_test() -> ! {
        panic!("nothing is sent")
    }

    #[tokio::test(start_paused = true)]
    async fn shards_that_refuse_are_tried_less_and_less_often() {
        let (started, tried) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let until = started + Duration::from_secs(600);
        let (_, reconnected) = reconnect(Box::new(Refusing { tried: Arc::clone(&tried), until })).await;
        reconnected.unwrap();
        let tried = tried.lock().unwrap();
        let pauses: Vec<_> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses[..3], [100, 200, 400].map(Duration::from_millis));
        assert_eq!(pauses.last(), Some(&MAX_PAUSE));
        assert!(tried.len() < 35, "{}", tried.len());
        assert!(started.elapsed() < Duration::from_secs(631), "it joins soon after they agree");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silence_is_told_once_and_only_if_it_lasts() {
        let mut silence = Silence::default();
        assert!(!silence.goes_on());
        sleep(TOLD_AFTER - RETRY).await;
        assert!(!silence.goes_on(), "shards are started again meanwhile");
        sleep(RETRY).await;
        assert!(silence.goes_on());
        sleep(10 * TOLD_AFTER).await;
        assert!(!silence.goes_on());
    }
}
