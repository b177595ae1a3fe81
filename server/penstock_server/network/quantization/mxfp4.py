"""Checkpoints of `mxfp4`: gpt-oss as it was published, whose experts have floats of 4 bits, and all else 16."""

from collections.abc import Sequence

from penstock_server.architectures.fields import Fields
from penstock_server.files.quantization import refuse_unknown
from penstock_server.network.quantization.fp4 import Fp4
from penstock_server.network.quantization.scheme import Scheme, Source
from penstock_server.network.quantization.skipped import Skipped
from penstock_server.network.quantization.stored import FLOATS, Stored, Wanted

_SKIPPED = ("modules_to_not_convert",)


class Mxfp4:
    """Blocks of 32 inputs: 16 bytes, and a power of two."""

    name = "mxfp4 in blocks of 32"

    def __init__(self, settings: Fields) -> None:
        refuse_unknown(settings, ("quant_method", *_SKIPPED))
        self.skipped = Skipped(settings, _SKIPPED)

    def check(self, modules: Sequence[str]) -> None:
        self.skipped.check(modules)

    def scheme(self, source: Source, stored: Stored) -> Scheme:
        self.skipped.refuse(source)
        return _Experts(32, "weight_blocks", "weight_scales", in_blocks=True, unused=())


class _Experts(Fp4):
    """Matrices of all experts in one tensor, with a bias that not every rank reads."""

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        bias = Wanted(source.tensor("weight_bias"), FLOATS, (source.stacked(source.shape[0]),), optional=True)
        return (*super().wanted(source, stored), bias)
