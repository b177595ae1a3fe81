"""How a slot samples, and which stages of the sampler that needs."""

from dataclasses import dataclass
from enum import IntFlag


class Feature(IntFlag):
    """The needs of a slot's sampling beyond the most likely token; a batch pays only for what some row of it needs."""

    PENALTIES = 1
    BIAS = 2
    SUPPRESSED = 4
    DRAW = 8
    TOP_K = 16
    TOP_P = 32
    MIN_P = 64
    TYPICAL_P = 128
    WATERMARK = 256
    BANNED = 512
    ALLOWED = 1024


# Features that can leave a slot without any token to choose.
EXCLUDING = Feature.BANNED | Feature.ALLOWED
# A temperature below this counts as 0: dividing by less would overflow, and the most likely token has all the weight.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the next token; the message of the same name in proto/engine.proto specifies it."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    logit_bias_ids: tuple[int, ...] = ()
    logit_bias_values: tuple[float, ...] = ()
    num_top_logprobs: int = 0
    logprob_ids: tuple[int, ...] = ()
    prompt_logprobs: bool = False
    min_new_tokens: int = 0
    suppressed_ids: tuple[int, ...] = ()
    watermark_delta: float = 0.0
    watermark_gamma: float = 0.0
    banned_ids: tuple[int, ...] = ()
    banned_lens: tuple[int, ...] = ()
    allowed_mask: bytes = b""

    def features(self) -> Feature:
        """Which of the sampler's stages this slot needs."""
        wanted = {
            Feature.PENALTIES: (self.repetition_penalty, self.frequency_penalty, self.presence_penalty)
            != (1, 0, 0),
            Feature.BIAS: bool(self.logit_bias_ids),
            Feature.WATERMARK: self.watermark_delta != 0,
            Feature.SUPPRESSED: self.min_new_tokens > 0 and bool(self.suppressed_ids),
            Feature.BANNED: bool(self.banned_lens),
            Feature.ALLOWED: bool(self.allowed_mask),
        }
        if self.temperature >= GREEDY_BELOW:
            wanted |= {
                Feature.DRAW: True,
                Feature.TOP_K: self.top_k > 0,
                Feature.TOP_P: self.top_p < 1,
                Feature.MIN_P: self.min_p > 0,
                Feature.TYPICAL_P: self.typical_p < 1,
            }
        return Feature(sum(feature for feature, needed in wanted.items() if needed))
