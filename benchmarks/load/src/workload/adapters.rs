//! Which adapter each session asks for: drawn before the run, so that a slow server changes nothing.

use clap::ValueEnum;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::Session;

/// Keeps the draws apart from those of lengths and texts, which have the same seed.
const STREAM: u64 = 1;

/// How often each adapter is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// All of them equally often
    #[default]
    Uniform,
    /// The first most often, the second half as often, the third a third as often, and so on
    Zipf,
}

/// The adapters that requests are spread over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// Their names on the server; empty: requests ask for the model.
    pub names: Vec<String>,
    /// How often each of them is asked for.
    pub spread: Spread,
}

impl Adapters {
    /// Draws one for each session.
    pub fn assign(&self, sessions: &mut [Session], seed: u64) {
        let mut total = 0.0;
        let ends: Vec<f64> = (1..=self.names.len())
            .map(|place| {
                total += self.weight(place);
                total
            })
            .collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(STREAM);
        for session in sessions {
            let drawn = rng.random_range(0.0..1.0) * total;
            session.adapter = self.names.get(ends.partition_point(|end| *end <= drawn)).cloned();
        }
    }

    fn weight(&self, place: usize) -> f64 {
        match self.spread {
            Spread::Uniform => 1.0,
            Spread::Zipf => 1.0 / place as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(spread: Spread, seed: u64) -> Vec<usize> {
        let names: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let mut sessions = vec![Session { at: None, turns: Vec::new(), adapter: None }; 10_000];
        Adapters { names: names.clone(), spread }.assign(&mut sessions, seed);
        names
            .iter()
            .map(|name| sessions.iter().filter(|one| one.adapter.as_ref() == Some(name)).count())
            .collect()
    }

    #[test]
    fn a_uniform_spread_asks_for_each_equally_often() {
        let found = counts(Spread::Uniform, 1);
        assert_eq!(found.iter().sum::<usize>(), 10_000);
        assert!(found.iter().all(|count| count.abs_diff(2500) < 200), "{found:?}");
    }

    #[test]
    fn zipf_asks_for_the_second_half_as_often() {
        let found = counts(Spread::Zipf, 1);
        // 1 + 1/2 + 1/3 + 1/4 is 25/12.
        let expected = [4800, 2400, 1600, 1200];
        assert!(found.iter().zip(expected).all(|(count, near)| count.abs_diff(near) < 200), "{found:?}");
        assert_eq!(found, counts(Spread::Zipf, 1));
        assert_ne!(found, counts(Spread::Zipf, 2));
    }

    #[test]
    fn without_adapters_requests_ask_for_the_model() {
        let mut sessions = vec![Session { at: None, turns: Vec::new(), adapter: None }];
        Adapters::default().assign(&mut sessions, 1);
        assert_eq!(sessions[0].adapter, None);
    }
}
