//! The cost of `multipleOf` in a schema: every number up to the divisor is a state, and the time grows with the square
//! of their number. llguidance computes with 32 bits: larger divisors would give wrong results without an error.

use serde_json::{Map, Value};

/// Most states: these take a tenth of a second, five times as many take three seconds.
const MAX_DIVISOR: u64 = 20_000;
const RANGE: std::ops::RangeInclusive<f64> = 1e-8..=1e8;

/// The divisors that one number must be a multiple of, by one keyword or several.
#[derive(Debug, Clone, Copy)]
pub(super) struct Multiple {
    count: usize,
    /// The divisor without the decimal point, if there is only one; 1 for a power of ten, which has few states because
    /// numbers are written in base ten.
    digits: u64,
    /// The product of the divisors, each as a whole number.
    product: u64,
}

impl Default for Multiple {
    fn default() -> Self {
        Self { count: 0, digits: 1, product: 1 }
    }
}

impl Multiple {
    /// The `multipleOf` of a subschema itself.
    pub fn own(fields: &Map<String, Value>) -> Result<Self, String> {
        let Some(divisor) = fields.get("multipleOf").and_then(Value::as_f64) else {
            return Ok(Self::default());
        };
        if divisor > 0.0 && !RANGE.contains(&divisor) {
            let (min, max) = (RANGE.start(), RANGE.end());
            return Err(format!("`multipleOf` may be from {min:e} to {max:e}. Given: {divisor:e}"));
        }
        let text = divisor.abs().to_string();
        let num_decimals = text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let digits = text.replace('.', "").parse::<u64>().unwrap_or(u64::MAX).max(1);
        let is_power_of_ten = digits.to_string().trim_end_matches('0') == "1";
        let product = digits.saturating_mul(10u64.saturating_pow(num_decimals as u32));
        let own = Self { count: 1, digits: if is_power_of_ten { 1 } else { digits }, product };
        check(own.cost())?;
        Ok(own)
    }

    /// The divisors of a number that has to be a multiple of both.
    pub fn joined(self, other: Self) -> Result<Self, String> {
        let joined = match (self.count, other.count) {
            (0, _) => other,
            (_, 0) => self,
            (a, b) => Self { count: a + b, product: self.product.saturating_mul(other.product), ..self },
        };
        check(joined.cost())?;
        Ok(joined)
    }

    /// The divisors of a number that has to be a multiple of one of them: those that cost more.
    pub fn or(self, other: Self) -> Self {
        if (self.count, self.product) < (other.count, other.product) { other } else { self }
    }

    /// Number of states.
    pub fn cost(&self) -> u64 {
        if self.count > 1 { self.product } else { self.digits }
    }
}

/// Refuses a cost above the limit, of one number or of all numbers together.
pub(super) fn check(cost: u64) -> Result<(), String> {
    if cost > MAX_DIVISOR {
        return Err(format!(
            "`multipleOf` may be at most {MAX_DIVISOR}, the decimal point left out, multiplied where several hold at \
             once and added over all of the schema; a power of ten alone is free. Given: {cost}"
        ));
    }
    Ok(())
}
