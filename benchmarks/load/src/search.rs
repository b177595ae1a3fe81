//! Searches for the highest rate that holds: doubles until one fails, then halves the gap. Pure.

/// The state of a search: the rates that were tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    first: f64,
    highest: f64,
    precision: f64,
    /// Highest rate that held.
    held: Option<f64>,
    /// Lowest rate that failed.
    failed: Option<f64>,
}

/// Times that a failing first rate is halved before the search gives up.
const MAX_HALVINGS: i32 = 6;

impl Search {
    /// A search that starts at `first` and never goes above `highest`; it ends when the answer is known to within
    /// `precision`, as a share of the rate.
    pub fn new(first: f64, highest: f64, precision: f64) -> Self {
        Self { first: first.min(highest), highest, precision, held: None, failed: None }
    }

    /// The next rate to try, or `None` once the answer is known.
    pub fn next_rate(&self) -> Option<f64> {
        match (self.held, self.failed) {
            (None, None) => Some(self.first),
            (Some(held), None) => (held < self.highest).then(|| (held * 2.0).min(self.highest)),
            (None, Some(failed)) => {
                Some(failed / 2.0).filter(|rate| *rate >= self.first / 2f64.powi(MAX_HALVINGS))
            }
            (Some(held), Some(failed)) => {
                (failed - held > self.precision * held).then(|| (held * failed).sqrt())
            }
        }
    }

    /// Records whether a rate held.
    pub fn record(&mut self, rate: f64, holds: bool) {
        if holds {
            self.held = Some(self.held.map_or(rate, |held| held.max(rate)));
        } else {
            self.failed = Some(self.failed.map_or(rate, |failed| failed.min(rate)));
        }
    }

    /// Highest rate that held.
    pub fn held(&self) -> Option<f64> {
        self.held
    }

    /// Lowest rate that failed.
    pub fn failed(&self) -> Option<f64> {
        self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a server that holds every rate up to `limit`; returns the rates that were tried.
    fn search(limit: f64, mut search: Search) -> (Option<f64>, Vec<f64>) {
        let mut tried = Vec::new();
        while let Some(rate) = search.next_rate() {
            assert!(tried.len() < 40, "does not end: {tried:?}");
            tried.push(rate);
            search.record(rate, rate <= limit);
        }
        (search.held(), tried)
    }

    #[test]
    fn finds_the_limit_to_its_precision() {
        for limit in [0.3, 1.0, 1.5, 7.7, 33.0, 511.0] {
            let found = search(limit, Search::new(1.0, 1024.0, 0.1)).0.expect("some rate holds");
            assert!(found <= limit && found * 1.1 >= limit, "{found} for {limit}");
        }
    }

    #[test]
    fn doubles_before_it_narrows() {
        assert_eq!(search(5.0, Search::new(1.0, 1024.0, 0.5)).1[..4], [1.0, 2.0, 4.0, 8.0]);
    }

    #[test]
    fn stops_at_the_highest_rate_and_where_nothing_holds() {
        assert_eq!(search(1e9, Search::new(3.0, 10.0, 0.1)), (Some(10.0), vec![3.0, 6.0, 10.0]));
        let (found, tried) = search(0.0, Search::new(1.0, 10.0, 0.1));
        assert_eq!((found, tried.len()), (None, 7));
    }
}
