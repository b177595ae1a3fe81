//! The flags about tokens that are drafted, and what they come to.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// Drafts a step for each sequence, where the flags say only how tokens are drafted.
const DEFAULT_DRAFTS: u32 = 4;

/// The flags.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SpeculationOptions {
    /// Most tokens that are drafted in a step for each sequence, 0 to 16; what is generated does not depend on it
    /// [default: 4 with --speculation, else 0]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(0..=16))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculate: Option<u32>,

    /// How tokens are drafted [default: ngram with --speculate, else none are]
    #[arg(long, env, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Speculation>,

    /// No tokens are drafted in steps in which more sequences than this generate
    // A step that computes few rows waits for memory, one with many for arithmetic: there every wrong draft costs time.
    #[arg(long, env, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub speculate_max: u32,
}

/// How tokens are drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Speculation {
    /// As they followed the last time that the last tokens of the sequence occurred in it
    Ngram,
    /// As they followed the longest of the last tokens wherever these occurred in it, each place with a vote
    Suffix,
    /// By a second, small model: that of --draft-model
    Draft,
    /// By heads of MEDUSA: those of --draft-model, or those in the folder of the model
    Medusa,
    /// By a head of EAGLE: that of --draft-model, or that in the folder of the model
    Eagle,
    /// By the layer of multi-token prediction that the checkpoint of the model has
    Mtp,
}

impl Speculation {
    /// The name of the heads that draft.
    pub fn heads(self) -> Option<&'static str> {
        match self {
            Self::Ngram | Self::Suffix | Self::Draft => None,
            Self::Medusa => Some("medusa"),
            Self::Eagle => Some("eagle"),
            Self::Mtp => Some("mtp"),
        }
    }
}

impl SpeculationOptions {
    /// Whether tokens are drafted from those of the sequence, so that a prediction of its output is of use.
    pub fn uses_predictions(&self) -> bool {
        let (Speculation::Ngram | Speculation::Suffix) = self.speculation.unwrap_or(Speculation::Ngram)
        else {
            return false;
        };
        self.max_drafts() > 0
    }

    /// Most tokens that a step drafts for each sequence.
    pub fn max_drafts(&self) -> u32 {
        self.speculate.unwrap_or(if self.speculation.is_some() { DEFAULT_DRAFTS } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: SpeculationOptions,
    }

    fn max_drafts(line: &str) -> Option<u32> {
        let line = Line::try_parse_from(line.split_whitespace());
        line.ok().map(|line| line.options.max_drafts())
    }

    #[test]
    fn tokens_are_drafted_only_where_a_flag_asks_for_it() {
        assert_eq!(max_drafts("launcher"), Some(0));
        assert_eq!(max_drafts("launcher --speculate 3"), Some(3));
        assert_eq!(max_drafts("launcher --speculation ngram"), Some(4));
        assert_eq!(max_drafts("launcher --speculation suffix"), Some(4));
        assert_eq!(max_drafts("launcher --speculation draft"), Some(4));
        assert_eq!(max_drafts("launcher --speculation ngram --speculate 0"), Some(0));
        assert_eq!(max_drafts("launcher --speculate 17"), None);
        assert_eq!(max_drafts("launcher --speculation medusa"), Some(4));
        assert_eq!(max_drafts("launcher --speculation eagle --speculate 2"), Some(2));
        assert_eq!(max_drafts("launcher --speculation mtp --speculate 1"), Some(1));
        assert_eq!(max_drafts("launcher --speculation lookahead"), None);
    }
}
