//! The fields of all bodies but those of chat completions and completions, which have the larger table. They are looked
//! up where unknown fields are refused (`--strict-fields`), and where a field of the larger table is.
//! docs/parameters.md shows the same rows.

use super::field::On;

/// The fields of one kind of body, or of an object inside it.
pub(super) struct BodyFields {
    pub(super) on: On,
    /// The body as the documentation calls it.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the documentation shows it"))]
    pub(super) title: &'static str,
    /// Fields that are read. A test compares them with the type of the request.
    pub(super) works: &'static [&'static [&'static str]],
    /// Fields that clients send, and that have no effect.
    pub(super) accepted: &'static [&'static str],
    /// Fields that are refused, each with the values that ask for nothing.
    pub(super) refused: &'static [(&'static str, &'static [&'static str])],
    /// Fields of other routes and servers which are refused, each with what to send here in its place.
    pub(super) instead: &'static [(&'static str, &'static str)],
    /// Fields that hold such objects, or lists of them.
    pub(super) nested: &'static [(&'static str, On)],
}

/// The fields of a body; `None` for those of the larger table.
pub(super) fn find(on: On) -> Option<&'static BodyFields> {
    BODIES.iter().find(|body| body.on == on)
}

impl BodyFields {
    /// Whether the body has a field of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.works.iter().any(|names| names.contains(&name)) || self.accepted.contains(&name)
    }

    /// The field of this name, if it is refused, and the values that ask for nothing.
    pub(super) fn refused(&self, name: &str) -> Option<(&'static str, &'static [&'static str])> {
        self.refused.iter().find(|(field, _)| *field == name).copied()
    }

    /// The hint about what to send instead of the field of this name; `None` if there is none.
    pub(super) fn instead(&self, name: &str) -> Option<&'static str> {
        self.instead.iter().find(|(field, _)| *field == name).map(|(_, instead)| *instead)
    }

    /// The kind of object that the field of this name holds; `None` if that has no known fields.
    pub(super) fn nested(&self, name: &str) -> Option<On> {
        self.nested.iter().find(|(field, _)| *field == name).map(|(_, on)| *on)
    }
}

/// The fields that `with_shared_fields` declares.
const SHARED: &[&str] = &[
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "stop_token_ids",
    "bad_words",
    "allowed_token_ids",
    "skip_special_tokens",
    "priority",
    "cache_salt",
    "cache_ttl_ms",
    "queue_timeout_ms",
];

const STRUCTURED: &str = "send `structured_outputs`";
const FORMAT: &str = "send `output_config.format`";

/// All bodies but those of the larger table.
pub(super) const BODIES: &[BodyFields] = &[
    BodyFields {
        on: On::Generate,
        title: "`/generate`, `/generate_stream`, `/`, `/invocations` and `/tokenize` with `inputs`",
        works: &[&["inputs", "parameters", "stream"]],
        accepted: &[],
        refused: &[],
        instead: &[],
        nested: &[("parameters", On::GenerateParameters)],
    },
    BodyFields {
        on: On::GenerateParameters,
        title: "`parameters` of these and of `/v2/models/{name}/infer`",
        works: &[
            &["adapter_id", "best_of", "decoder_input_details", "details", "do_sample", "grammar"],
            &["max_new_tokens", "min_new_tokens", "return_full_text", "seed", "stop", "top_n_tokens"],
            &["truncate", "watermark"],
            SHARED,
        ],
        accepted: &[],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::Vertex,
        title: "`/vertex`, whose instances have the fields of chat completions or of `/generate`",
        works: &[&["instances"]],
        accepted: &["parameters"],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::TokenizePrompt,
        title: "`/tokenize` with `prompt`",
        works: &[&["add_special_tokens", "model", "prompt", "return_token_strs"]],
        accepted: &[],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::TokenizeChat,
        title: "`/tokenize` with `messages`, beside the fields of chat completions",
        works: &[&["add_special_tokens", "return_token_strs"]],
        accepted: &[],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::Detokenize,
        title: "`/detokenize`",
        works: &[&["model", "skip_special_tokens", "tokens"]],
        accepted: &[],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::LoadAdapter,
        title: "`/v1/load_lora_adapter` and `/load_lora_adapter`",
        works: &[&["load_inplace", "lora_name", "lora_path"]],
        accepted: &["base_model_name", "is_3d_lora_weight", "pinned"],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::UnloadAdapter,
        title: "`/v1/unload_lora_adapter` and `/unload_lora_adapter`",
        works: &[&["lora_name"]],
        accepted: &["lora_int_id"],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::UpdateWeights,
        title: "`/update_weights`",
        works: &[&["mode", "path", "version"]],
        accepted: &[],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::InitWeightsUpdateGroup,
        title: "`/init_weights_update_group`",
        works: &[&["backend", "group_name", "master_address", "master_port", "rank_offset", "world_size"]],
        accepted: &[],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::UpdateWeightsFromDistributed,
        title: "`/update_weights_from_distributed`",
        works: &[&[
            "abort_all_requests",
            "dtypes",
            "group_name",
            "load_format",
            "names",
            "shapes",
            "weight_version",
        ]],
        accepted: &["flush_cache", "torch_empty_cache"],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::DestroyWeightsUpdateGroup,
        title: "`/destroy_weights_update_group`",
        works: &[&["group_name"]],
        accepted: &[],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::Infill,
        title: "`/infill`",
        works: &[
            &[
                "grammar",
                "input_extra",
                "input_prefix",
                "input_suffix",
                "json_schema",
                "n_predict",
                "n_probs",
            ],
            &["prompt", "repeat_penalty", "return_tokens", "seed", "stop", "stream"],
            SHARED,
        ],
        accepted: &["cache_prompt", "id_slot", "n_discard", "n_keep"],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::Responses,
        title: "`/v1/responses`",
        works: &[
            &["background", "conversation", "frequency_penalty", "include", "input", "instructions"],
            &["max_output_tokens", "max_tool_calls", "metadata", "model", "parallel_tool_calls"],
            &["presence_penalty", "previous_response_id", "prompt", "prompt_cache_key", "reasoning"],
            &["safety_identifier", "service_tier", "stream", "temperature", "text", "tool_choice", "tools"],
            &["top_logprobs", "top_p", "truncation", "user"],
            &["cache_salt", "ignore_eos", "include_stop_str_in_output", "logit_bias", "priority"],
            &["repetition_penalty", "seed", "skip_special_tokens", "stop", "structured_outputs", "top_k"],
        ],
        accepted: &[
            "access_programs",
            "background_options",
            "context_management",
            "image",
            "mm_processor_kwargs",
            "prompt_cache_options",
            "prompt_cache_retention",
            "request_id",
            "store",
            "stream_options",
        ],
        refused: &[
            ("enable_response_messages", &["false"]),
            ("previous_input_messages", &[]),
            ("previous_response", &[]),
        ],
        instead: &[
            ("max_tokens", "send `max_output_tokens`"),
            ("max_completion_tokens", "send `max_output_tokens`"),
            ("n_predict", "send `max_output_tokens`"),
            ("messages", "send `input`"),
            ("previous_input_messages", "send `input`"),
            ("response_format", "send `text.format`"),
            ("verbosity", "send `text.verbosity`"),
            ("reasoning_effort", "send `reasoning.effort`"),
            ("logprobs", "send `top_logprobs`"),
            ("n_probs", "send `top_logprobs`"),
            ("guided_json", STRUCTURED),
            ("guided_regex", STRUCTURED),
            ("guided_choice", STRUCTURED),
            ("guided_grammar", STRUCTURED),
            ("json_schema", STRUCTURED),
            ("regex", STRUCTURED),
            ("ebnf", STRUCTURED),
            ("grammar", STRUCTURED),
            ("repeat_penalty", "send `repetition_penalty`"),
            ("extra_key", "send `cache_salt`"),
            ("functions", "send `tools`"),
            ("function_call", "send `tool_choice`"),
        ],
        nested: &[],
    },
    BodyFields {
        on: On::ResponsesCompact,
        title: "`/v1/responses/compact`",
        works: &[&["input", "instructions", "model", "previous_response_id"]],
        accepted: &["prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "service_tier"],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::Messages,
        title: "`/v1/messages` and `/v1/messages/count_tokens`",
        works: &[
            &["container", "context_management", "max_tokens", "mcp_servers", "messages", "model"],
            &["output_config", "output_format", "stop_sequences", "stream", "system", "temperature"],
            &["thinking", "tool_choice", "tools", "top_k", "top_p"],
        ],
        accepted: &[
            "anthropic_beta",
            "anthropic_version",
            "billing_policy",
            "cache_control",
            "diagnostics",
            "fallback_credit_token",
            "fallbacks",
            "inference_geo",
            "metadata",
            "service_tier",
            "speed",
        ],
        refused: &[("compaction", &[]), ("thread", &[])],
        instead: &[
            ("max_completion_tokens", "send `max_tokens`"),
            ("n_predict", "send `max_tokens`"),
            ("stop", "send `stop_sequences`"),
            ("response_format", FORMAT),
            ("guided_json", FORMAT),
            ("json_schema", FORMAT),
            ("reasoning_effort", "send `output_config.effort`"),
            ("functions", "send `tools`"),
            ("function_call", "send `tool_choice`"),
        ],
        nested: &[],
    },
    BodyFields {
        on: On::OllamaChat,
        title: "`/api/chat`",
        works: &[
            &["format", "keep_alive", "logprobs", "messages", "model", "options", "stream", "think", "tools"],
            &["top_logprobs"],
        ],
        accepted: &["shift", "truncate"],
        refused: &[],
        instead: &[],
        nested: &[("options", On::OllamaOptions)],
    },
    BodyFields {
        on: On::OllamaGenerate,
        title: "`/api/generate`",
        works: &[
            &["context", "format", "images", "keep_alive", "logprobs", "model", "options", "prompt", "raw"],
            &["stream", "suffix", "system", "template", "think", "top_logprobs"],
        ],
        accepted: &["shift", "truncate"],
        refused: &[],
        instead: &[],
        nested: &[("options", On::OllamaOptions)],
    },
    BodyFields {
        on: On::OllamaOptions,
        title: "`options` of these two",
        works: &[
            &["frequency_penalty", "min_p", "mirostat", "num_predict", "presence_penalty", "repeat_penalty"],
            &["seed", "stop", "temperature", "tfs_z", "top_k", "top_p", "typical_p"],
        ],
        accepted: &[
            "draft_num_predict",
            "embedding_only",
            "f16_kv",
            "logits_all",
            "low_vram",
            "main_gpu",
            "mirostat_eta",
            "mirostat_tau",
            "num_batch",
            "num_ctx",
            "num_gpu",
            "num_keep",
            "num_thread",
            "numa",
            "penalize_newline",
            "repeat_last_n",
            "rope_frequency_base",
            "rope_frequency_scale",
            "use_mlock",
            "use_mmap",
            "vocab_only",
        ],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::OllamaShow,
        title: "`/api/show`",
        works: &[&["model", "name"]],
        accepted: &["options", "system", "template", "verbose"],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::Kserve,
        title: "`/v2/models/{name}/generate` and `/generate_stream`",
        works: &[&["id", "parameters", "text_input"]],
        accepted: &[],
        refused: &[],
        instead: &[],
        nested: &[("parameters", On::KserveParameters)],
    },
    BodyFields {
        on: On::KserveParameters,
        title: "`parameters` of these two",
        works: &[&["details", "max_tokens", "min_tokens", "seed", "stop"], SHARED],
        accepted: &[],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::Infer,
        title: "`/v2/models/{name}/infer`",
        works: &[&["id", "inputs", "outputs", "parameters"]],
        accepted: &[],
        refused: &[],
        instead: &[],
        nested: &[
            ("parameters", On::GenerateParameters),
            ("inputs", On::InferInput),
            ("outputs", On::InferOutput),
        ],
    },
    BodyFields {
        on: On::InferInput,
        title: "`inputs` of it",
        works: &[&["data", "datatype"]],
        accepted: &["name", "parameters", "shape"],
        refused: &[],
        instead: &[],
        nested: &[],
    },
    BodyFields {
        on: On::InferOutput,
        title: "`outputs` of it",
        works: &[&["name"]],
        accepted: &["parameters"],
        refused: &[],
        instead: &[],
        nested: &[],
    },
];
