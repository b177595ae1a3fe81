"""Why each failing test of llama.cpp fails, found by reading what it asserts; one that is not here is unexplained."""

ROUTE = "a route that only llama.cpp has"
FORM = "llama.cpp's form of `/tokenize`"
FIELD = "a field that only llama.cpp has"
OPTIONS = "options that their server is started with"
MODEL = "their own model (words, tokens, reasoning)"
IMAGE = "an image"
# The first chunk's content is "", two answers may end a conversation, and one without messages is refused.
HABIT = "a habit of OpenAI or Anthropic that llama.cpp does not share"

_BY_REASON: dict[str, dict[str, tuple[str, ...]]] = {
    ROUTE: {
        "basic": ("server_props", "server_slots", "load_split_model"),
        "chat_completion": ("chat_completions_token_count",),
        # All of these post to `/completion`, or read `/slots`.
        "completion": (
            "completion",
            "completion_stream",
            "completion_stream_vs_non_stream",
            "consistent_result_same_seed",
            "different_result_different_seed",
            "consistent_result_different_batch_size",
            "nocache_long_input_prompt",
            "json_prompt_no_mtmd",
            "completion_parallel_slots",
            "completion_unified",
            "completion_response_fields",
            "n_probs",
            "n_probs_stream",
            "n_probs_post_sampling",
            "n_probs_post_backend_sampling",
            "cancel_request",
            "completion_prompt_cache",
        ),
    },
    FORM: {
        "tokenize": ("tokenize_detokenize", "tokenize_with_bos", "tokenize_with_pieces"),
        # They ask `/tokenize` for what they send; half of the latter post to `/completion` instead.
        "chat_completion": ("logit_bias",),
        "completion": ("logit_bias", "completion_with_tokens_input"),
    },
    FIELD: {
        # `__verbose`, which shows the prompt.
        "chat_completion": (
            "chat_template",
            "chat_template_assistant_prefill",
            "chat_template_continue_final_message_vllm_compat",
            "verbose_debug",
            "chat_completion_with_timings_per_token",
            "return_progress",
        ),
        "compat_oai_responses": ("responses_stream_with_llama_telemetry",),
    },
    OPTIONS: {
        # A key, another name, no page.
        "basic": ("server_multiple_addresses", "server_models", "no_ui", "server_model_aliases_and_tags"),
        # Another template, a context of 256 tokens.
        "chat_completion": (
            "apply_chat_template",
            "context_size_exceeded",
            "context_size_exceeded_stream",
        ),
        # A file with another template.
        "template": ("reasoning", "date_inside_prompt", "add_generation_prompt"),
    },
    MODEL: {
        "chat_completion": (
            "chat_completion",
            "chat_completion_cached_tokens",
            "chat_completion_stream",
            "chat_completion_with_openai_library",
            "completion_with_response_format",
        ),
        "compat_anthropic": (
            "anthropic_thinking_history_in_count_tokens",
            "anthropic_thinking_history_in_template",
            "anthropic_thinking_with_reasoning_model",
        ),
        "compat_oai_responses": ("responses_with_openai_library",),
        "completion": (
            "completion_with_openai_library",
            "completion_stream_with_openai_library",
            "completion_stream_with_openai_library_stops",
        ),
        # The demo model has no tokens to fill in the middle.
        "infill": ("infill_without_input_extra", "infill_with_input_extra"),
    },
    IMAGE: {
        "compat_anthropic": (
            "anthropic_tool_result_with_image",
            "anthropic_vision_format_accepted",
            "anthropic_vision_base64_with_multimodal_model",
        ),
    },
    HABIT: {
        "chat_completion": ("invalid_chat_completion_req", "logprobs_stream"),
        "compat_anthropic": ("anthropic_empty_messages",),
    },
}

REASONS = {
    f"unit.test_{file}::test_{name}": reason
    for reason, files in _BY_REASON.items()
    for file, names in files.items()
    for name in names
}


def reason_of(file: str, name: str) -> str:
    """Why a test that failed did; `name` may have parameters."""
    return REASONS.get(f"{file}::{name.split('[')[0]}", "unexplained")
