//! When requests start: a schedule computed before the run, so that a slow server cannot slow the offered load down.
//!
//! Pure: a shape, a rate and a seed in, offsets from the start of the run out.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Gamma};

/// How the gaps between two arrivals are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// Equal gaps.
    Constant {
        /// Arrivals per second.
        rate: f64,
    },
    /// Gaps of a gamma distribution. Shape 1 is a Poisson process, below 1 bursts, above 1 evens out.
    Gamma {
        /// Mean arrivals per second.
        rate: f64,
        /// Shape of the distribution.
        shape: f64,
    },
    /// Equal gaps under a rate that changes linearly over the schedule.
    Ramp {
        /// Arrivals per second at the start.
        from: f64,
        /// Arrivals per second at the end.
        to: f64,
    },
}

/// Where a schedule ends: at a count, at a time, or at what comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extent {
    /// Most arrivals.
    pub count: Option<usize>,
    /// Last moment an arrival may have.
    pub span: Option<Duration>,
}

impl Arrival {
    /// The offsets of all arrivals, ascending. Without any limit the schedule is empty.
    pub fn schedule(&self, extent: Extent, seed: u64) -> Vec<Duration> {
        if extent == Extent::default() {
            return Vec::new();
        }
        let max = extent.count.unwrap_or(usize::MAX);
        self.offsets(extent, seed)
            .take(max)
            .map(Duration::from_secs_f64)
            .take_while(|at| extent.span.is_none_or(|span| *at < span))
            .collect()
    }

    /// Mean arrivals per second that the shape asks for.
    pub fn mean_rate(&self) -> f64 {
        match *self {
            Self::Constant { rate } | Self::Gamma { rate, .. } => rate,
            Self::Ramp { from, to } => (from + to) / 2.0,
        }
    }

    fn offsets(&self, extent: Extent, seed: u64) -> Box<dyn Iterator<Item = f64>> {
        match *self {
            Self::Constant { rate } => Box::new((0u32..).map(move |i| f64::from(i) / rate)),
            Self::Gamma { rate, shape } => Box::new(gamma_offsets(rate, shape, seed)),
            Self::Ramp { from, to } => Box::new(ramp_offsets(from, to, extent)),
        }
    }
}

/// The first request starts at once; each further one after a drawn gap.
fn gamma_offsets(rate: f64, shape: f64, seed: u64) -> impl Iterator<Item = f64> {
    let gaps =
        Gamma::new(shape, 1.0 / (rate * shape)).expect("flags are checked: rate and shape are positive");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut at = 0.0;
    std::iter::repeat_with(move || {
        let now = at;
        at += gaps.sample(&mut rng);
        now
    })
}

/// Arrival `i` is when the integral of the rate, `from t + (to - from) t² / 2T`, reaches `i`.
fn ramp_offsets(from: f64, to: f64, extent: Extent) -> impl Iterator<Item = f64> {
    let by_count = extent.count.map(|count| 2.0 * count as f64 / (from + to));
    let total = extent.span.map(|span| span.as_secs_f64()).or(by_count).unwrap_or(f64::INFINITY);
    let slope = (to - from) / total;
    (0u32..).map(f64::from).map_while(move |i: f64| {
        let discriminant = from * from + 2.0 * slope * i;
        (discriminant >= 0.0).then(|| if i == 0.0 { 0.0 } else { 2.0 * i / (from + discriminant.sqrt()) })
    })
}

/// A whole number drawn evenly from `mean · (1 - ratio) ..= mean · (1 + ratio)`, at least 1.
pub fn draw_length(rng: &mut impl Rng, mean: u32, ratio: f64) -> u32 {
    let low = (f64::from(mean) * (1.0 - ratio)).floor().max(1.0) as u32;
    let high = ((f64::from(mean) * (1.0 + ratio)).ceil() as u32).max(low);
    rng.random_range(low..=high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats;

    const COUNT: usize = 20_000;

    fn count(count: usize) -> Extent {
        Extent { count: Some(count), span: None }
    }

    fn gaps(schedule: &[Duration]) -> Vec<f64> {
        schedule.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect()
    }

    #[test]
    fn constant_gaps_are_equal() {
        let schedule = Arrival::Constant { rate: 4.0 }.schedule(count(5), 0);
        assert_eq!(schedule, [0, 250, 500, 750, 1000].map(Duration::from_millis));
    }

    #[test]
    fn gamma_keeps_the_mean_rate_and_has_the_variation_of_its_shape() {
        for shape in [0.25, 1.0, 4.0] {
            let drawn = gaps(&Arrival::Gamma { rate: 50.0, shape }.schedule(count(COUNT), 7));
            assert!((stats::mean(&drawn) * 50.0 - 1.0).abs() < 0.05, "shape {shape}");
            let variation = stats::coefficient_of_variation(&drawn).expect("many gaps");
            assert!((variation * shape.sqrt() - 1.0).abs() < 0.05, "shape {shape}: {variation}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule_and_another_seed_another() {
        let poisson = Arrival::Gamma { rate: 10.0, shape: 1.0 };
        assert_eq!(poisson.schedule(count(100), 3), poisson.schedule(count(100), 3));
        assert_ne!(poisson.schedule(count(100), 3), poisson.schedule(count(100), 4));
    }

    #[test]
    fn a_span_bounds_the_schedule_and_the_smaller_limit_wins() {
        let constant = Arrival::Constant { rate: 10.0 };
        let second = Some(Duration::from_secs(1));
        assert_eq!(constant.schedule(Extent { count: None, span: second }, 0).len(), 10);
        assert_eq!(constant.schedule(Extent { count: Some(3), span: second }, 0).len(), 3);
        assert!(constant.schedule(Extent::default(), 0).is_empty());
    }

    #[test]
    fn a_ramp_over_a_span_has_the_mean_rate_and_speeds_up() {
        let span = Some(Duration::from_secs(10));
        let up = Arrival::Ramp { from: 10.0, to: 30.0 }.schedule(Extent { count: None, span }, 0);
        assert!((199..=201).contains(&up.len()), "{}", up.len());
        // by hand: 10 t + t² at t = 5 is 75 arrivals in the first half
        let half = up.iter().filter(|at| at.as_secs_f64() < 5.0).count();
        assert!((74..=76).contains(&half), "{half}");
        let down = Arrival::Ramp { from: 30.0, to: 10.0 }.schedule(Extent { count: None, span }, 0);
        assert!((199..=201).contains(&down.len()), "{}", down.len());
    }

    #[test]
    fn a_ramp_to_a_count_gives_that_count() {
        assert_eq!(Arrival::Ramp { from: 1.0, to: 9.0 }.schedule(count(100), 0).len(), 100);
        assert_eq!(Arrival::Ramp { from: 9.0, to: 1.0 }.schedule(count(100), 0).len(), 100);
    }

    #[test]
    fn lengths_stay_within_the_ratio_and_never_reach_zero() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let drawn: Vec<u32> = (0..1000).map(|_| draw_length(&mut rng, 100, 0.2)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&80), Some(&120)));
        assert_eq!(draw_length(&mut rng, 100, 0.0), 100);
        assert!((0..100).all(|_| draw_length(&mut rng, 1, 1.0) >= 1));
    }
}
