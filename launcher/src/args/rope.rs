//! The flags of TGI that replace the scaling of a model's rotary positions.

use clap::{Args as ClapArgs, ValueEnum};

/// The kind and the factor of the scaling.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct RopeArgs {
    /// Scaling of rotary positions in the place of config.json's [default: config.json's, or linear with --rope-factor]
    #[arg(long, env)]
    pub rope_scaling: Option<RopeScaling>,

    /// Factor of that scaling: sequences may be this many times as long as the model was made for
    /// [default: 1 with --rope-scaling]
    #[arg(long, env, value_parser = factor)]
    pub rope_factor: Option<f32>,
}

/// How rotary positions are scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RopeScaling {
    /// All positions are divided by the factor
    Linear,
    /// The base grows with the length of the sequence, where that is beyond the model's
    Dynamic,
}

impl RopeArgs {
    /// The scaling to use; `None` for the one of config.json.
    pub fn chosen(&self) -> Option<(RopeScaling, f32)> {
        match (self.rope_scaling, self.rope_factor) {
            (None, None) => None,
            (scaling, factor) => Some((scaling.unwrap_or(RopeScaling::Linear), factor.unwrap_or(1.0))),
        }
    }
}

fn factor(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if (1.0..=1024.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 1 to 1024".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_has_the_default_of_tgi_where_only_the_other_is_given() {
        let chosen = |rope_scaling, rope_factor| RopeArgs { rope_scaling, rope_factor }.chosen();
        assert_eq!(chosen(None, None), None);
        assert_eq!(chosen(None, Some(2.0)), Some((RopeScaling::Linear, 2.0)));
        assert_eq!(chosen(Some(RopeScaling::Dynamic), None), Some((RopeScaling::Dynamic, 1.0)));
    }

    #[test]
    fn a_factor_is_a_number_from_1() {
        assert_eq!(factor("2.5"), Ok(2.5));
        for wrong in ["0", "0.5", "nan", "inf", "x", "-1"] {
            assert!(factor(wrong).is_err(), "{wrong}");
        }
    }
}
