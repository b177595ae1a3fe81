"""Checkpoints of `fp8` (DeepSeek, Qwen and others: blocks, or one scale) and of `fbgemm_fp8` (a scale for every row).

Activations stay in 16 bits, whatever the settings say of them: that is closer to the model than rounding them, too.
"""

from collections.abc import Sequence

from penstock_server.architectures.fields import Fields
from penstock_server.files.quantization import refuse_unknown
from penstock_server.network.quantization.float8 import Float8
from penstock_server.network.quantization.scheme import Scheme, Source
from penstock_server.network.quantization.skipped import Skipped
from penstock_server.network.quantization.stored import Stored

_OF_ACTIVATIONS = ("activation_scheme", "activation_scale_ub", "kv_cache_scheme")
_KNOWN = ("quant_method", "fmt", "scale_fmt", "weight_block_size", "dequantize", *_OF_ACTIVATIONS)
_SKIPPED = ("modules_to_not_convert", "ignored_layers", "ignored_modules")
# Names of the scale that a matrix is multiplied by; the first is of blocks, or of the whole matrix.
_SCALES = ("weight_scale_inv", "weight_scale")
_UNUSED = ("input_scale", "activation_scale", "input_scale_ub")


class Fp8:
    """Floats of 8 bits in `weight`, and a scale beside it."""

    def __init__(self, settings: Fields) -> None:
        refuse_unknown(settings, (*_KNOWN, *_SKIPPED))
        if settings.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
            raise settings.error("fmt", settings.get("fmt"), "e4m3, the only one supported")
        self.skipped = Skipped(settings, _SKIPPED)
        self.block = _block(settings)
        self.name = f"fp8 in blocks of {self.block[0]} x {self.block[1]}" if all(self.block) else "fp8"

    def check(self, modules: Sequence[str]) -> None:
        self.skipped.check(modules)

    def scheme(self, source: Source, stored: Stored) -> Scheme:
        self.skipped.refuse(source)
        scale = next((name for name in _SCALES if stored.has(source.tensor(name))), _SCALES[0])
        return Float8(self._block_of(source, stored, scale), scale, _UNUSED)

    def _block_of(self, source: Source, stored: Stored, scale: str) -> tuple[int, int]:
        """The block of the settings; without one, a scale for every row, or one for all."""
        name = source.tensor(scale)
        rows = source.stacked(source.shape[0])
        if self.block == (0, 0) and stored.has(name) and stored.entry(name).shape[: len(rows)] == rows:
            return 1, 0
        return self.block


class FbgemmFp8(Fp8):
    """FP8 with a scale for every row."""

    def __init__(self, settings: Fields) -> None:
        super().__init__(settings)
        self.block = (1, 0)
        self.name = "fbgemm_fp8, a scale for every row"


def _block(settings: Fields) -> tuple[int, int]:
    written = settings.get("weight_block_size")
    if written is None:
        return 0, 0
    is_right = isinstance(written, list) and len(written) == 2
    if not is_right or not all(type(size) is int and 0 < size < 2**20 for size in written):
        raise settings.error("weight_block_size", written, "two positive whole numbers")
    return written[0], written[1]
