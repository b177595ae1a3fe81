//! What `multipleOf` of a schema costs: every number up to the divisor is a state, and finding the way through them takes
//! the square of it. llguidance reckons with 32 bits, and what does not fit would be wrong without a word.

use serde_json::{Map, Value};

/// A tenth of a second; five times as many are three seconds.
const MAX_DIVISOR: u64 = 20_000;
const RANGE: std::ops::RangeInclusive<f64> = 1e-8..=1e8;

/// What one number has to be a multiple of, by one or several keywords.
#[derive(Debug, Clone, Copy)]
pub(super) struct Multiple {
    count: usize,
    /// Its digits without the decimal point, if it is one; powers of ten have few states, being ours.
    digits: u64,
    /// As whole numbers, multiplied.
    product: u64,
}

impl Default for Multiple {
    fn default() -> Self {
        Self { count: 0, digits: 1, product: 1 }
    }
}

impl Multiple {
    /// Of a subschema itself.
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

    /// Where both hold.
    pub fn joined(self, other: Self) -> Result<Self, String> {
        let joined = match (self.count, other.count) {
            (0, _) => other,
            (_, 0) => self,
            (a, b) => Self { count: a + b, product: self.product.saturating_mul(other.product), ..self },
        };
        check(joined.cost())?;
        Ok(joined)
    }

    /// Where either holds, the one that costs more.
    pub fn or(self, other: Self) -> Self {
        if (self.count, self.product) < (other.count, other.product) { other } else { self }
    }

    /// States that it takes.
    pub fn cost(&self) -> u64 {
        if self.count > 1 { self.product } else { self.digits }
    }
}

/// Of one number, or of all together.
pub(super) fn check(cost: u64) -> Result<(), String> {
    match cost > MAX_DIVISOR {
        true => Err(format!(
            "`multipleOf` may be at most {MAX_DIVISOR}, the decimal point left out, multiplied where several hold at \
             once and added over all of the schema; a power of ten alone is free. Given: {cost}"
        )),
        false => Ok(()),
    }
}
