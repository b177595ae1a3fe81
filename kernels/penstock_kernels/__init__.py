"""Ops of a paged language model: one public function each, checked, with a plain PyTorch twin in `reference`.

Nothing here knows the server. Importing has no effects: no device is touched and no setting is read.
"""

from penstock_kernels.paged_attention import AttentionSpans, paged_attention
from penstock_kernels.rms_norm import rms_norm
from penstock_kernels.rotary import apply_rotary
from penstock_kernels.silu_mul import silu_mul
from penstock_kernels.store_kv import store_kv

__all__ = ["AttentionSpans", "apply_rotary", "paged_attention", "rms_norm", "silu_mul", "store_kv"]
