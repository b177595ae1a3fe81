"""Qwen2 and Qwen2.5: biased query, key and value; a sliding window in the upper layers where the config asks for it."""

from penstock_server.models.config import Family

FAMILY = Family("qwen2", qkv_bias=True, has_window=True)
