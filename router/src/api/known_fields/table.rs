//! The table of the fields of chat completions and completions. docs/parameters.md shows the same rows in the same order,
//! which a test compares.
//!
//! A row has the name, the routes, who documents the field, what becomes of it, and a note. To build a field, put it
//! into the type of the request and write `works` here. A note that begins with "send" is part of the error, too.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::field::{Fate, Field, On};

/// The known field of this name in this body.
pub(super) fn find(name: &str, on: On) -> Option<&'static Field> {
    BY_NAME.get(name)?.iter().copied().find(|field| field.on.includes(on))
}

/// The field of this name that chat completions or completions have, where this body does not have it and should.
pub(super) fn find_elsewhere(name: &str, on: On) -> Option<&'static Field> {
    if !on.is_compared() {
        return None;
    }
    [On::Chat, On::Completions].into_iter().filter(|route| *route != on).find_map(|route| find(name, route))
}

/// A body may have very many fields, so each name is looked up, not searched for.
static BY_NAME: LazyLock<HashMap<&str, Vec<&Field>>> = LazyLock::new(|| {
    let mut by_name = HashMap::<_, Vec<_>>::new();
    FIELDS.iter().for_each(|field| by_name.entry(field.name).or_default().push(field));
    by_name
});

/// Reads rows of the form `"name" Chat "OpenAI" works "note";`. A field that is refused lists the values that ask for
/// nothing.
macro_rules! fields {
    ($($name:literal $on:ident $of:literal $fate:ident $([$($neutral:literal),*])? $note:literal;)*) => {
        &[$(Field {
            name: $name,
            on: On::$on,
            of: $of,
            fate: fields!(@fate $fate $([$($neutral),*])?),
            note: $note,
        }),*]
    };
    (@fate works) => { Fate::Works };
    (@fate accepted) => { Fate::Accepted };
    (@fate refused [$($neutral:literal),*]) => { Fate::Refused(&[$($neutral),*]) };
}

/// The fields that OpenAI, TGI, vLLM, SGLang and llama.cpp document for both routes, and our own.
pub(super) const FIELDS: &[Field] = fields! {
    // The prompt.
    "model" Both "OpenAI" works "the served model or an alias of it";
    "messages" Chat "OpenAI" works "";
    "prompt" Completions "OpenAI" works "a text, a list of texts, a list of token ids or a list of such lists";
    "suffix" Completions "OpenAI" works "where the tokenizer has fill-in-the-middle tokens";
    "echo" Completions "OpenAI" works "";
    "echo" Chat "vLLM" works "of the message that the reply continues";
    "add_special_tokens" Chat "vLLM" refused ["false"] "the chat template has them";
    "add_special_tokens" Completions "vLLM" refused ["true"] "";
    "truncate_prompt_tokens" Both "vLLM" works "-1: as many as fit";
    "truncation_side" Both "vLLM" refused ["\"left\""] "";
    "prompt_embeds" Completions "vLLM" refused [] "";
    "input_ids" Chat "SGLang" refused [] "send them to completions, as `prompt`";
    "documents" Chat "vLLM" refused [] "send them in `chat_template_kwargs`";
    "mm_processor_kwargs" Chat "vLLM" accepted "of images and sounds, which are refused";
    "media_io_kwargs" Chat "vLLM" accepted "of images and sounds, which are refused";
    "max_dynamic_patch" Chat "SGLang" accepted "of images and sounds, which are refused";
    "min_dynamic_patch" Chat "SGLang" accepted "of images and sounds, which are refused";
    "use_audio_in_video" Chat "SGLang" accepted "of images and sounds, which are refused";
    "images_config" Both "SGLang" accepted "of images and sounds, which are refused";
    "image_data" Both "llama.cpp" refused [] "";
    "modalities" Chat "OpenAI" refused ["[\"text\"]"] "";
    "audio" Chat "OpenAI" refused [] "";

    // The chat template.
    "chat_template" Chat "vLLM" works "refused unless the server has `--trust-request-chat-template`";
    "chat_template_kwargs" Chat "vLLM, SGLang, llama.cpp" works "variables of the chat template";
    "reasoning_effort" Chat "OpenAI" works "a variable of the chat template";
    "reasoning" Chat "SGLang" refused [] "send `reasoning_effort`";
    "task" Chat "SGLang" refused [] "";
    "generation_prompt" Chat "llama.cpp" refused [] "";
    "add_generation_prompt" Chat "vLLM" works "";
    "continue_final_message" Chat "vLLM, SGLang" works "";
    "verbosity" Chat "OpenAI" works "`low`, `medium` or `high`: a variable of the chat template";

    // The length.
    "max_tokens" Both "OpenAI" works "";
    "max_completion_tokens" Both "OpenAI" works "wins over `max_tokens`";
    "n_predict" Both "llama.cpp" refused ["-1"] "send `max_tokens`";
    "min_tokens" Both "vLLM, SGLang" works "";
    "ignore_eos" Both "vLLM, SGLang, llama.cpp" works "";
    "stop" Both "OpenAI" works "a string or a list";
    "stop_token_ids" Both "vLLM, SGLang" works "";
    "stop_regex" Both "SGLang" works "a regular expression or a list";
    "include_stop_str_in_output" Both "vLLM" works "";
    "no_stop_trim" Both "SGLang" refused ["false"] "send `include_stop_str_in_output`";
    "t_max_predict_ms" Both "llama.cpp" refused ["0", "-1"] "";
    "n_indent" Both "llama.cpp" refused ["0"] "";
    "thinking_token_budget" Chat "vLLM" works "-1: no limit";
    "thinking_token_budget" Completions "vLLM" refused ["-1"] "";
    "reasoning_budget_tokens" Chat "llama.cpp" refused ["-1"] "send `thinking_token_budget`";
    "reasoning_budget_tokens" Completions "llama.cpp" refused ["-1"] "";
    "thinking_budget_tokens" Chat "llama.cpp" refused ["-1"] "send `thinking_token_budget`";
    "reasoning_control" Both "llama.cpp" refused ["false"] "";
    "repetition_detection" Both "vLLM" refused [] "";

    // Sampling.
    "seed" Both "OpenAI" works "any 64-bit integer";
    "temperature" Both "OpenAI" works "";
    "top_p" Both "OpenAI" works "";
    "top_k" Both "vLLM, SGLang, llama.cpp" works "-1 and 0: off";
    "min_p" Both "vLLM, SGLang, llama.cpp" works "";
    "typical_p" Both "llama.cpp" works "";
    "frequency_penalty" Both "OpenAI" works "";
    "presence_penalty" Both "OpenAI" works "";
    "repetition_penalty" Both "vLLM, SGLang" works "";
    "logit_bias" Both "OpenAI" works "a map from token ids";
    "allowed_token_ids" Both "vLLM" works "";
    "bad_words" Both "vLLM" works "";
    "use_beam_search" Both "vLLM" refused ["false"] "";
    "length_penalty" Both "vLLM" refused ["1.0"] "of beam search";
    "early_stopping" Both "vLLM" refused ["false"] "of beam search";
    "watermarking" Both "vLLM" refused ["false"] "send `watermark` to `/generate`";
    "logits_processors" Both "vLLM" refused [] "";
    "custom_logit_processor" Both "SGLang" refused [] "";
    "custom_params" Both "SGLang" refused [] "of `custom_logit_processor`";
    "repeat_penalty" Both "llama.cpp" refused ["1.0"] "send `repetition_penalty`";
    "repeat_last_n" Both "llama.cpp" refused ["64"] "of `repeat_penalty`";
    "samplers" Both "llama.cpp" refused [] "";
    "min_keep" Both "llama.cpp" refused ["0"] "";
    "dynatemp_range" Both "llama.cpp" refused ["0"] "";
    "dynatemp_exponent" Both "llama.cpp" accepted "of `dynatemp_range`";
    "top_n_sigma" Both "llama.cpp" refused ["-1"] "";
    "xtc_probability" Both "llama.cpp" refused ["0"] "";
    "xtc_threshold" Both "llama.cpp" accepted "of `xtc_probability`";
    "adaptive_target" Both "llama.cpp" refused ["-1"] "";
    "adaptive_decay" Both "llama.cpp" accepted "of `adaptive_target`";
    "backend_sampling" Both "llama.cpp" accepted "there is one sampler";
    "dry_multiplier" Both "llama.cpp" refused ["0"] "";
    "dry_base" Both "llama.cpp" accepted "of `dry_multiplier`";
    "dry_allowed_length" Both "llama.cpp" accepted "of `dry_multiplier`";
    "dry_penalty_last_n" Both "llama.cpp" accepted "of `dry_multiplier`";
    "dry_sequence_breakers" Both "llama.cpp" accepted "of `dry_multiplier`";
    "mirostat" Both "llama.cpp" refused ["0"] "";
    "mirostat_tau" Both "llama.cpp" accepted "of `mirostat`";
    "mirostat_eta" Both "llama.cpp" accepted "of `mirostat`";

    // The number of replies.
    "n" Both "OpenAI" works "";
    "best_of" Completions "OpenAI" works "";
    "best_of" Chat "vLLM" refused ["1"] "";
    "n_cmpl" Both "llama.cpp" refused ["1"] "send `n`";

    // Constrained output.
    "response_format" Both "OpenAI" works "on completions, too";
    "guided_json" Both "vLLM" works "a JSON schema, or the text of one";
    "guided_regex" Both "vLLM" works "";
    "guided_choice" Both "vLLM" works "a list of texts";
    "guided_grammar" Both "vLLM" works "Lark or EBNF";
    "guided_decoding_backend" Both "vLLM" accepted "there is one";
    "guided_whitespace_pattern" Both "vLLM" refused [] "";
    "structured_outputs" Both "vLLM" works "`json`, `regex`, `choice`, `grammar` or `json_object`";
    "regex" Both "SGLang" works "";
    "ebnf" Both "SGLang" works "EBNF or Lark";
    "json_schema" Both "SGLang, llama.cpp" works "";
    "grammar" Both "llama.cpp" works "EBNF or Lark";
    "grammar_lazy" Both "llama.cpp" refused ["false"] "";
    "grammar_triggers" Both "llama.cpp" refused [] "";
    "preserved_tokens" Both "llama.cpp" refused [] "of `grammar_triggers`";

    // Tools.
    "tools" Chat "OpenAI" works "";
    "tool_choice" Chat "OpenAI" works "";
    "parallel_tool_calls" Chat "OpenAI" works "";
    "tool_prompt" Chat "TGI" works "";
    "parse_tool_calls" Chat "llama.cpp" refused ["true"] "";
    "functions" Chat "OpenAI" refused [] "send `tools`";
    "function_call" Chat "OpenAI" refused ["\"none\""] "send `tool_choice`";
    "web_search_options" Chat "OpenAI" refused [] "";
    "moderation" Chat "OpenAI" refused [] "";

    // Fields that decide what the response shows.
    "stream" Both "OpenAI" works "";
    "stream_options" Both "OpenAI" works "";
    "stream_interval" Both "vLLM" accepted "every token is sent at once";
    "logprobs" Both "OpenAI" works "";
    "top_logprobs" Chat "OpenAI" works "needs `logprobs`";
    "logprob_token_ids" Both "vLLM" works "in the place of the most likely ones";
    "prompt_logprobs" Both "vLLM" works "not for streams";
    "n_probs" Both "llama.cpp" refused ["0"] "send `logprobs`";
    "post_sampling_probs" Both "llama.cpp" refused ["false"] "";
    "skip_special_tokens" Both "vLLM, SGLang" works "";
    "spaces_between_special_tokens" Both "vLLM" accepted "special tokens are written as they are spelt";
    "return_token_ids" Both "vLLM" works "";
    "return_prompt_token_ids" Chat "SGLang" refused ["false"] "send `return_token_ids`";
    "return_tokens_as_token_ids" Both "vLLM" works "";
    "return_prompt_text" Chat "vLLM" refused ["false"] "";
    "return_tokens" Both "llama.cpp" refused ["false"] "send `return_token_ids`";
    "return_token_offsets" Both "vLLM" accepted "of vLLM's route that renders";
    "return_mm_kwargs" Both "vLLM" accepted "of vLLM's route that renders";
    "return_hidden_states" Both "SGLang" refused ["false"] "";
    "return_routed_experts" Both "SGLang" refused ["false"] "";
    "routed_experts_prompt_start" Both "vLLM" accepted "of `return_routed_experts`";
    "routed_experts_start_len" Both "SGLang" accepted "of `return_routed_experts`";
    "return_meta_info" Chat "SGLang" refused ["false"] "";
    "return_cached_tokens_details" Both "SGLang" refused ["false"] "";
    "include_reasoning" Chat "vLLM" works "`false`: the response has no reasoning";
    "separate_reasoning" Chat "SGLang" refused ["true"] "";
    "stream_reasoning" Chat "SGLang" refused ["true"] "";
    "reasoning_format" Chat "llama.cpp" refused ["\"auto\"", "\"deepseek\""] "reasoning is `reasoning_content`";
    "timings_per_token" Chat "llama.cpp" works "`timings` in the response";
    "timings_per_token" Completions "llama.cpp" refused ["false"] "";
    "return_progress" Both "llama.cpp" refused ["false"] "";
    "response_fields" Both "llama.cpp" refused [] "";
    "verbose" Both "llama.cpp" refused ["false"] "";
    "sse_ping_interval" Both "llama.cpp" accepted "silence is filled with comments";

    // Scheduling and caches.
    "priority" Both "vLLM, SGLang" works "";
    "cache_salt" Both "vLLM, SGLang" works "";
    "cache_ttl_ms" Both "Penstock" works "";
    "queue_timeout_ms" Both "Penstock" works "";
    "cache_prompt" Both "llama.cpp" accepted "prompts are always cached, but for `--prefix-caching false`";
    "n_cache_reuse" Both "llama.cpp" accepted "equal prompts share the cache without it";
    "extra_key" Both "SGLang" refused [] "send `cache_salt`";
    "prompt_cache_key" Chat "OpenAI" accepted "equal prompts share the cache without it";
    "prompt_cache_retention" Chat "OpenAI" accepted "the cache is not stored";
    "prompt_cache_options" Chat "OpenAI" accepted "the cache is not stored";
    "id_slot" Both "llama.cpp" accepted "every slot computes the same";
    "n_keep" Both "llama.cpp" accepted "a prompt that is too long is refused";
    "n_discard" Both "llama.cpp" accepted "a prompt that is too long is refused";
    "data_parallel_rank" Both "SGLang" refused [] "";
    "routed_dp_rank" Both "SGLang" refused [] "";
    "disagg_prefill_dp_rank" Both "SGLang" refused [] "";
    "ngram_corpus_id" Both "SGLang" accepted "of drafts, which never change the reply";
    "bootstrap_host" Both "SGLang" refused [] "";
    "bootstrap_port" Both "SGLang" refused [] "";
    "bootstrap_room" Both "SGLang" refused [] "";
    "kv_transfer_params" Both "vLLM" refused [] "";
    "ec_transfer_params" Both "vLLM" refused [] "";
    "session_params" Both "SGLang" refused [] "";
    "session_id" Both "vLLM" accepted "equal prompts share the cache without it";

    // Adapters and extensions.
    "lora_path" Both "SGLang" refused [] "send the name of the adapter as `model`";
    "lora" Both "llama.cpp" refused [] "send the name of the adapter as `model`";
    "vllm_xargs" Both "vLLM" refused [] "";

    // Fields that say who asks, or why.
    "user" Both "OpenAI" accepted "does not change the reply";
    "safety_identifier" Chat "OpenAI" accepted "the server has no policy about users";
    "metadata" Chat "OpenAI" accepted "does not change the reply";
    "store" Chat "OpenAI" accepted "nothing is stored";
    "service_tier" Chat "OpenAI" works "every tier is served alike; the response says `default`";
    "prediction" Chat "OpenAI" works "with `--speculation ngram` or `suffix` tokens are drafted from it; it never changes the reply";
    "request_id" Both "vLLM" accepted "does not change the reply";
    "rid" Both "SGLang" accepted "does not change the reply";
    "custom_labels" Both "SGLang" accepted "does not change the reply";
};
