//! The part of a model that a budget needs: how it is reached, when it was last used, and a gate that is closed while
//! it falls asleep.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::proxy::served::Rest;

/// The gate of one model.
pub struct Gate {
    rest: Rest,
    is_closed: watch::Sender<bool>,
    used: Mutex<Instant>,
    /// Whether somebody may have changed the model by hand.
    is_doubted: AtomicBool,
    bell: Arc<Notify>,
}

impl Gate {
    /// An open one. The bell is rung when something has happened to the model.
    pub fn new(rest: Rest, bell: Arc<Notify>) -> Self {
        let (is_closed, used) = (watch::Sender::new(false), Mutex::new(Instant::now()));
        Self { rest, is_closed, used, is_doubted: AtomicBool::new(false), bell }
    }

    /// How the model is reached, and its devices.
    pub fn rest(&self) -> &Rest {
        &self.rest
    }

    /// Waits until it is open.
    pub async fn opened(&self) {
        // The sender lives as long as this.
        let _ = self.is_closed.subscribe().wait_for(|is_closed| !is_closed).await;
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        *self.is_closed.borrow()
    }

    /// Closes or opens it.
    pub fn set_closed(&self, is_closed: bool) {
        self.is_closed.send_replace(is_closed);
    }

    /// The model is given a request.
    pub fn on_use(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// When it was last given one.
    pub fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the model looked at soon: somebody may have sent it to sleep or woken it.
    pub fn doubt(&self) {
        self.is_doubted.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// Whether somebody doubted since it was last asked.
    pub fn take_doubt(&self) -> bool {
        self.is_doubted.swap(false, Ordering::Relaxed)
    }

    /// Something has happened to the model.
    pub fn ring(&self) {
        self.bell.notify_one();
    }
}
