//! Plain statistics over samples: mean, percentiles, spread. No notion of what is measured.

use serde::{Deserialize, Serialize};

/// The statistics of one set of samples that a table shows; all zero without samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Distribution {
    /// How many samples there were.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the population.
    pub std: f64,
    /// Smallest sample.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest sample.
    pub max: f64,
}

impl Distribution {
    /// Describes the samples, in any order.
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |percent| percentile(&samples, percent);
        Self {
            count: samples.len(),
            mean: mean(&samples),
            std: population_std(&samples),
            min: at(0.0),
            p50: at(50.0),
            p90: at(90.0),
            p95: at(95.0),
            p99: at(99.0),
            max: at(100.0),
        }
    }
}

/// The mean, or 0 without samples.
pub fn mean(samples: &[f64]) -> f64 {
    if samples.is_empty() { 0.0 } else { samples.iter().sum::<f64>() / samples.len() as f64 }
}

/// A percentile of ascending samples, interpolated linearly between neighbours as numpy does; 0 without samples.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let position = percent / 100.0 * last as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * position.fract()
}

/// Standard deviation over mean of repeated measurements (sample deviation, n - 1); `None` below two repeats.
pub fn coefficient_of_variation(repeats: &[f64]) -> Option<f64> {
    let average = mean(repeats);
    if repeats.len() < 2 || average == 0.0 {
        return None;
    }
    Some((squared_deviations(repeats) / (repeats.len() - 1) as f64).sqrt() / average)
}

fn population_std(samples: &[f64]) -> f64 {
    if samples.is_empty() { 0.0 } else { (squared_deviations(samples) / samples.len() as f64).sqrt() }
}

fn squared_deviations(samples: &[f64]) -> f64 {
    let average = mean(samples);
    samples.iter().map(|sample| (sample - average).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate_between_neighbours() {
        let sorted = [10.0, 20.0, 30.0, 40.0];
        assert_eq!(percentile(&sorted, 0.0), 10.0);
        assert_eq!(percentile(&sorted, 50.0), 25.0);
        assert!((percentile(&sorted, 90.0) - 37.0).abs() < 1e-9);
        assert_eq!(percentile(&sorted, 100.0), 40.0);
        assert_eq!(percentile(&[7.0], 99.0), 7.0);
    }

    #[test]
    fn describes_samples_in_any_order() {
        let found = Distribution::of(vec![4.0, 2.0, 9.0, 4.0, 5.0, 7.0, 4.0, 5.0]);
        assert_eq!((found.count, found.mean, found.std), (8, 5.0, 2.0));
        assert_eq!((found.min, found.p50, found.max), (2.0, 4.5, 9.0));
        assert!((found.p90 - 7.6).abs() < 1e-9);
    }

    #[test]
    fn no_samples_are_all_zero() {
        assert_eq!(Distribution::of(Vec::new()), Distribution::default());
    }

    #[test]
    fn variation_is_sample_deviation_over_mean() {
        // deviations -1, 0, 1: variance 2 / 2 = 1, so 1 / 10
        assert_eq!(coefficient_of_variation(&[9.0, 10.0, 11.0]), Some(0.1));
        assert_eq!(coefficient_of_variation(&[9.0]), None);
    }
}
