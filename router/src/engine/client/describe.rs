//! The description that a shard reports of itself.

use super::{Description, pb};
use crate::base::role::Role;
use crate::engine::block_transfer::BlockSource;
use crate::engine::condition::AwakeBytes;
use crate::engine::{EngineFacts, GenerationDefaults, Quantization};

impl From<pb::DescribeResponse> for Description {
    fn from(response: pb::DescribeResponse) -> Self {
        Self {
            instance_id: response.instance_id,
            rank: response.rank,
            last_epoch: response.last_epoch,
            sleep_level: response.sleep_level,
            weights_label: response.weights_label,
            role: Role::named(&response.role),
            block_source: response
                .block_source
                .map(|source| BlockSource { address: source.address, secret: source.secret }),
            awake_bytes: response.awake_bytes.map(Into::into).unwrap_or_default(),
            facts: EngineFacts {
                version: response.version,
                model_type: response.model_type,
                dtype: response.dtype,
                device: response.device,
                world_size: response.world_size,
                num_stages: response.num_stages,
                block_size: response.block_size,
                num_blocks: response.num_blocks,
                num_slots: response.num_slots,
                vocab_size: response.vocab_size,
                eos_token_ids: response.eos_token_ids,
                max_sequence_len: response.max_sequence_len,
                max_step_tokens: response.max_step_tokens,
                max_top_logprobs: response.max_top_logprobs,
                attention_window: (response.attention_window > 0).then_some(response.attention_window),
                max_adapters: response.max_adapters,
                num_snapshots: response.num_snapshots,
                kv_cache_dtype: response.kv_cache_dtype,
                attention_backend: response.attention_backend,
                abilities: response.abilities,
                generation_defaults: response.generation_defaults.map(Into::into),
                quantization: response.quantization.map(Into::into),
                expert_parallel: response.expert_parallel,
                weights_version: response.weights_version,
                tokenizer_version: response.tokenizer_version,
            },
        }
    }
}

impl From<pb::AwakeBytes> for AwakeBytes {
    fn from(pb::AwakeBytes { level_1, level_2 }: pb::AwakeBytes) -> Self {
        Self { level_1, level_2 }
    }
}

impl From<pb::Quantization> for Quantization {
    fn from(quantization: pb::Quantization) -> Self {
        Self {
            format: quantization.format,
            num_matrices: quantization.num_matrices,
            num_bytes: quantization.num_bytes,
            num_bytes_in_16_bits: quantization.num_bytes_in_16_bits,
            modules_in_16_bits: quantization.plain,
            from_cache: quantization.from_cache,
        }
    }
}

impl From<pb::GenerationDefaults> for GenerationDefaults {
    fn from(defaults: pb::GenerationDefaults) -> Self {
        Self {
            do_sample: defaults.do_sample,
            temperature: defaults.temperature,
            top_k: defaults.top_k,
            top_p: defaults.top_p,
            min_p: defaults.min_p,
            typical_p: defaults.typical_p,
            repetition_penalty: defaults.repetition_penalty,
        }
    }
}
