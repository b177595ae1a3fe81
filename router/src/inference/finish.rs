//! Why a sequence has ended.

use penstock_scheduler::FinishReason;

/// Why a sequence is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The sequence has as many tokens as were asked for.
    Length,
    /// The model ended it.
    EndOfSequence,
    /// A stop string.
    Stop,
    /// A token that the request stops at.
    StopToken,
}

impl Finish {
    /// Its name in OpenAI's API and in OpenTelemetry.
    pub fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::EndOfSequence | Self::Stop | Self::StopToken => "stop",
        }
    }
}

impl From<FinishReason> for Finish {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Length => Self::Length,
            FinishReason::EndOfSequence => Self::EndOfSequence,
            FinishReason::StopToken => Self::StopToken,
        }
    }
}
