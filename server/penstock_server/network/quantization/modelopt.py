"""Checkpoints of ModelOpt: floats of 8 or 4 bits, as the type of a matrix tells.

Activations stay in 16 bits, whatever the settings say of them: that is closer to the model than rounding them, too.
"""

from collections.abc import Sequence

from penstock_server.architectures.fields import Fields
from penstock_server.files.quantization import refuse_unknown
from penstock_server.network.quantization.float8 import Float8
from penstock_server.network.quantization.fp4 import Fp4
from penstock_server.network.quantization.scheme import Scheme, Source
from penstock_server.network.quantization.skipped import Skipped
from penstock_server.network.quantization.stored import Stored

_KNOWN = (
    "quant_method", "quant_algo", "producer", "kv_cache_scheme", "kv_cache_quant_algo", "group_size",
    "quantized_layers", "config_groups", "targets",
)  # fmt: skip
_SKIPPED = ("ignore", "exclude_modules")
_ALGORITHMS = ("FP8", "NVFP4", "MXFP8", "MIXED_PRECISION")
# Inputs of a block of MXFP8.
_MXFP8_BLOCK = 32


class ModelOpt:
    """FP8: one scale. MXFP8: a power of two for 32 inputs. NVFP4: blocks of 16 and a scale of the whole matrix."""

    def __init__(self, settings: Fields) -> None:
        refuse_unknown(settings, (*_KNOWN, *_SKIPPED))
        algorithm = settings.get("quant_algo")
        if algorithm not in _ALGORITHMS:
            raise settings.error("quant_algo", algorithm, f"one of {', '.join(_ALGORITHMS)}")
        self.skipped = Skipped(settings, _SKIPPED)
        self.name = f"ModelOpt {algorithm}"

    def check(self, modules: Sequence[str]) -> None:
        self.skipped.check(modules)

    def scheme(self, source: Source, stored: Stored) -> Scheme:
        self.skipped.refuse(source)
        if stored.has(source.tensor("weight")) and stored.entry(source.tensor("weight")).dtype == "U8":
            return Fp4(16, "weight", "weight_scale", "weight_scale_2")
        scale = source.tensor("weight_scale")
        is_in_blocks = stored.has(scale) and stored.entry(scale).dtype in ("U8", "F8_E8M0")
        return Float8((1, _MXFP8_BLOCK) if is_in_blocks else (0, 0))
