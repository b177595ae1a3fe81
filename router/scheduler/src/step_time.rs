//! How long a step will take: learnt from the steps before it, by least squares over what a step costs: something
//! fixed, something per token, per pair of a token and a position that it attends to, and per cached position read.

use std::time::Duration;

/// The work of a step, in the terms that decide its time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepCost {
    /// Token positions computed.
    pub tokens: f64,
    /// Over those, the sum of the positions that each attends to.
    pub attended: f64,
    /// Over the spans, the sum of the positions that each reads. For decodes that is `attended`, and bound by memory; for
    /// a chunk it is far less, and its pairs are bound by arithmetic.
    pub read: f64,
}

impl StepCost {
    /// The cost of computing `len` positions from `start`.
    pub fn of_span(start: u32, len: u32) -> Self {
        let (start, len) = (f64::from(start), f64::from(len));
        Self { tokens: len, attended: len * (start + (len + 1.0) / 2.0), read: start + len }
    }

    /// An equal part of it, of so many.
    pub fn part_of(self, count: usize) -> Self {
        let count = count as f64;
        Self { tokens: self.tokens / count, attended: self.attended / count, read: self.read / count }
    }

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            attended: self.attended + other.attended,
            read: self.read + other.read,
        }
    }
}

/// Steps of about this age still count: half as much as a new one.
const HALF_LIFE_STEPS: f64 = 200.0;
/// Scales that bring the terms near one, so that the equations stay well conditioned.
const TOKENS_SCALE: f64 = 1.0 / 256.0;
const ATTENDED_SCALE: f64 = 1.0 / 65_536.0;
const READ_SCALE: f64 = 1.0 / 4096.0;
/// Pulls the weight of a term that no step had towards zero.
const RIDGE: f64 = 1e-3;
const NUM_TERMS: usize = 4;

type Terms = [f64; NUM_TERMS];

/// The learnt model.
#[derive(Debug, Clone)]
pub struct StepTimeModel {
    /// Decayed sums of x·xᵀ and of x·t.
    products: [Terms; NUM_TERMS],
    times: Terms,
    weights: Terms,
    num_steps: u64,
    /// The most tokens of a step seen.
    most_tokens: f64,
}

impl StepTimeModel {
    pub fn new() -> Self {
        let none = Terms::default();
        Self { products: [none; NUM_TERMS], times: none, weights: none, num_steps: 0, most_tokens: 32.0 }
    }

    /// Learns from a step that took `micros`.
    pub fn observe(&mut self, cost: StepCost, micros: f64) {
        let x = terms(cost);
        let decay = 0.5f64.powf(1.0 / HALF_LIFE_STEPS);
        for i in 0..NUM_TERMS {
            for (j, xj) in x.iter().enumerate() {
                self.products[i][j] = self.products[i][j] * decay + x[i] * xj;
            }
            self.times[i] = self.times[i] * decay + x[i] * micros;
        }
        self.num_steps += 1;
        self.most_tokens = self.most_tokens.max(cost.tokens);
        self.weights = solve(self.products, self.times);
    }

    /// Expected microseconds; `None` before anything was seen.
    pub fn predict(&self, cost: StepCost) -> Option<f64> {
        (self.num_steps > 0).then(|| dot(terms(cost), self.weights))
    }

    /// The microseconds that this adds to a step with other work; the number of tokens before anything was measured.
    pub fn added_by(&self, cost: StepCost) -> f64 {
        let [_, added @ ..] = terms(cost);
        let [_, weights @ ..] = self.weights;
        let micros: f64 = added.iter().zip(weights).map(|(a, b)| a * b).sum();
        if micros > 0.0 { micros } else { cost.tokens }
    }

    /// The longest span from `start`, up to `longest`, that keeps a step which already costs `cost` within `micros`, and
    /// within `further` times the tokens of any step seen.
    pub fn longest_span(
        &self,
        cost: StepCost,
        start: u32,
        longest: u32,
        (micros, further): (f64, f64),
    ) -> u32 {
        let known = (further * self.most_tokens - cost.tokens).max(0.0) as u32;
        let fits = |len: u32| {
            self.predict(cost.plus(StepCost::of_span(start, len))).is_none_or(|time| time <= micros)
        };
        let (mut low, mut high) = (0, longest.min(known));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }
}

/// A time in the unit of the model.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn terms(cost: StepCost) -> Terms {
    [1.0, cost.tokens * TOKENS_SCALE, cost.attended * ATTENDED_SCALE, cost.read * READ_SCALE]
}

fn dot(a: Terms, b: Terms) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Solves the regularised normal equations by elimination; no term may make a step faster.
fn solve(mut a: [Terms; NUM_TERMS], mut b: Terms) -> Terms {
    for (i, row) in a.iter_mut().enumerate() {
        row[i] += RIDGE;
    }
    for i in 0..NUM_TERMS {
        for j in i + 1..NUM_TERMS {
            let factor = a[j][i] / a[i][i];
            let pivot = a[i];
            a[j].iter_mut().zip(pivot).skip(i).for_each(|(x, p)| *x -= factor * p);
            b[j] -= factor * b[i];
        }
    }
    let mut x = Terms::default();
    for i in (0..NUM_TERMS).rev() {
        let known: f64 = (i + 1..NUM_TERMS).map(|k| a[i][k] * x[k]).sum();
        x[i] = ((b[i] - known) / a[i][i]).max(0.0);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taught() -> StepTimeModel {
        let mut model = StepTimeModel::new();
        for i in 0..300u32 {
            let cost = StepCost::of_span(i * 7 % 900, 1 + i * 13 % 500);
            model.observe(cost, 2000.0 + 10.0 * cost.tokens + 0.01 * cost.attended);
        }
        model
    }

    #[test]
    fn learns_what_a_step_costs() {
        let cost = StepCost::of_span(500, 300);
        let expected = 2000.0 + 10.0 * cost.tokens + 0.01 * cost.attended;
        let predicted = taught().predict(cost).unwrap();
        assert!((predicted / expected - 1.0).abs() < 0.02, "{predicted} for {expected}");
    }

    #[test]
    fn tells_a_decode_that_reads_from_a_chunk_that_computes() {
        let cost_of = |cost: StepCost| 1000.0 + 5.0 * cost.tokens + 0.01 * cost.attended + 0.5 * cost.read;
        let mut model = StepTimeModel::new();
        for i in 0..400u32 {
            let decodes =
                (0..8).fold(StepCost::default(), |all, k| all.plus(StepCost::of_span(100 + i + 9 * k, 1)));
            let chunk = StepCost::of_span(i * 16, if i % 3 == 0 { 0 } else { 16 });
            let cost = if chunk.tokens > 0.0 { decodes.plus(chunk) } else { decodes };
            model.observe(cost, cost_of(cost));
        }
        let deep = StepCost::of_span(300, 1).plus(StepCost::of_span(6000, 8));
        let predicted = model.predict(deep).unwrap();
        assert!((predicted / cost_of(deep) - 1.0).abs() < 0.1, "{predicted} for {}", cost_of(deep));
    }

    #[test]
    fn the_longest_span_is_within_the_time_and_one_more_is_not() {
        let model = taught();
        let decodes = StepCost::of_span(100, 8);
        let len = model.longest_span(decodes, 64, 500, (4000.0, 2.0));
        let time = |len| model.predict(decodes.plus(StepCost::of_span(64, len))).unwrap();
        assert!(time(len) <= 4000.0 && time(len + 1) > 4000.0, "{len}");
    }

    #[test]
    fn promises_nothing_far_beyond_what_it_saw() {
        let mut model = StepTimeModel::new();
        model.observe(StepCost::of_span(10, 8), 1000.0);
        assert_eq!(model.longest_span(StepCost::default(), 0, 4096, (1e9, 2.0)), 64);
        assert_eq!(model.longest_span(StepCost::default(), 0, 4096, (1e9, 4.0)), 128);
    }
}
