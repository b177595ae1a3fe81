//! Derives the arrivals and the number of requests from the flags of the load.

use super::{ArrivalKind, LoadArgs};
use crate::arrival::Arrival;
use crate::error::Error;

/// Default shape of `gamma`: clearly in bursts.
const DEFAULT_BURSTINESS: f64 = 0.5;
/// Requests sent if no flag sets a number or a duration.
const DEFAULT_NUM_REQUESTS: usize = 100;
/// Different sessions prepared for a run that only a duration ends; they come again if it needs more.
pub(super) const DEFAULT_PREPARED: usize = 1000;

impl LoadArgs {
    /// The kind of arrivals that the flags amount to.
    pub fn kind(&self) -> ArrivalKind {
        let by_rate = if self.rate.is_some() { ArrivalKind::Poisson } else { ArrivalKind::Closed };
        self.arrival.unwrap_or(by_rate)
    }

    /// How many requests at most.
    pub fn max_requests(&self) -> Option<usize> {
        let has_no_end = self.duration.is_none() && self.kind() != ArrivalKind::Trace;
        self.num_requests.or(has_no_end.then_some(DEFAULT_NUM_REQUESTS))
    }

    /// The shape of the schedule; `None` for a closed loop or a trace.
    pub fn shape(&self) -> Result<Option<Arrival>, Error> {
        let rate = || {
            let missing = format!("needs --rate, requests per second, for {}", self.kind().name());
            self.rate.ok_or_else(|| Error::flag("--arrival", self.kind().name(), missing))
        };
        Ok(match self.kind() {
            ArrivalKind::Closed | ArrivalKind::Trace => None,
            ArrivalKind::Constant => Some(Arrival::Constant { rate: rate()? }),
            ArrivalKind::Poisson => Some(Arrival::Gamma { rate: rate()?, shape: 1.0 }),
            ArrivalKind::Gamma => {
                Some(Arrival::Gamma { rate: rate()?, shape: self.burstiness.unwrap_or(DEFAULT_BURSTINESS) })
            }
            ArrivalKind::Ramp => Some(Arrival::Ramp { from: rate()?, to: self.ramp_end()? }),
        })
    }

    fn ramp_end(&self) -> Result<f64, Error> {
        self.ramp_to.ok_or_else(|| Error::flag("--arrival", "ramp", "needs --ramp-to, the rate at the end"))
    }

    /// How many different sessions to prepare.
    pub(super) fn num_prepared(&self) -> usize {
        match (self.max_requests(), self.duration, self.rate) {
            (Some(count), _, _) => count,
            (None, Some(span), Some(rate)) => {
                let mean =
                    (rate + self.ramp_to.filter(|_| self.kind() == ArrivalKind::Ramp).unwrap_or(rate)) / 2.0;
                ((mean * span.as_secs_f64() * 1.2).ceil() as usize).clamp(1, 100 * DEFAULT_PREPARED)
            }
            _ if self.kind() == ArrivalKind::Trace => usize::MAX,
            _ => DEFAULT_PREPARED,
        }
    }
}
