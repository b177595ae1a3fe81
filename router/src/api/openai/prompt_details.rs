//! Details of the prompt that responses show if asked for, in vLLM's form: its token ids and their log probabilities.

use std::collections::BTreeMap;

use penstock_scheduler::PromptScore;
use serde::Serialize;
use utoipa::ToSchema;

use crate::text::detokenizer::Vocabulary;

/// The details that a request asks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct PromptDisplay {
    /// Whether token ids are shown, of the prompt and of the output.
    pub token_ids: bool,
    /// How many of the most likely tokens to show for each token of the prompt; `None` shows no log probabilities.
    pub num_top: Option<usize>,
}

/// The details of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct PromptDetails {
    /// With `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// With `prompt_logprobs`: for each token a map from ids, which has the token itself and the most likely ones in its
    /// place. The first token has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Vec<Option<BTreeMap<u32, PromptTokenLogprob>>>>,
}

/// How likely a token is in one place of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct PromptTokenLogprob {
    pub logprob: f32,
    /// Its place among all tokens by probability; 1 is the most likely.
    pub rank: u32,
    pub decoded_token: String,
}

impl PromptDisplay {
    /// The details that the two fields of a request ask for.
    pub fn of(return_token_ids: Option<bool>, prompt_logprobs: Option<u64>) -> Self {
        let num_top = prompt_logprobs.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        Self { token_ids: return_token_ids.unwrap_or(false), num_top }
    }

    /// The token ids of a prompt, if asked for.
    pub fn token_ids(self, prompt: &[u32]) -> Option<Vec<u32>> {
        self.token_ids.then(|| prompt.to_vec())
    }

    /// The details of a prompt with these scores.
    pub fn details(
        self,
        vocabulary: &Vocabulary,
        prompt: &[u32],
        scores: &[Option<PromptScore>],
    ) -> PromptDetails {
        let prompt_logprobs = self.num_top.map(|num_top| {
            let tokens = prompt.iter().zip(scores);
            let place = |score: &PromptScore, id| logprobs_of_place(vocabulary, id, score, num_top);
            tokens.map(|(&id, score)| score.as_ref().map(|score| place(score, id))).collect()
        });
        PromptDetails { prompt_token_ids: self.token_ids(prompt), prompt_logprobs }
    }
}

fn logprobs_of_place(
    vocabulary: &Vocabulary,
    id: u32,
    score: &PromptScore,
    num_top: usize,
) -> BTreeMap<u32, PromptTokenLogprob> {
    let entry = |id, logprob, rank| {
        (id, PromptTokenLogprob { logprob, rank, decoded_token: vocabulary.token_text(id) })
    };
    let top = score.top.iter().take(num_top).zip(1..).map(|(top, rank)| entry(top.id, top.logprob, rank));
    top.chain([entry(id, score.logprob, score.rank)]).collect()
}
